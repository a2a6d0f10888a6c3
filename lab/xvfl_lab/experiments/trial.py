"""One method on one data set in several scenarios at once: rows, masks, nets, training.

The runs of a trial differ in seed, scenario and λ alone, so their nets have one shape:
they are stacked, and the rows of all runs go through them together. Torch and numpy alone.
Shapes: R runs, N rows of a run, k parties.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

import torch
from torch import Tensor

from xvfl import maths
from xvfl.config import LossConfig, NetConfig, TrainConfig
from xvfl.federation.build import build_method, build_parties
from xvfl.federation.fused import FusedFederation
from xvfl.federation.party_worker import PartyWorker
from xvfl.federation.predict import answerable, logits
from xvfl.methods.base import Method, Mode
from xvfl.methods.xvfl import XVFL
from xvfl.primitives.layout import any_image
from xvfl.primitives.random import named_generator
from xvfl.primitives.rows import PartyTable, Rows
from xvfl.primitives.seeding import derive_seed
from xvfl.training.loop import Trainer
from xvfl_lab.scenarios import Kind, Scenario
from xvfl_lab.task import Task

Part = Literal["train", "validation", "test", "whole"]
"""`test` rows are all non-aligned; `whole` are the same rows with nothing missing on purpose."""


@dataclass(frozen=True)
class Setting:
    """One run: a method in a scenario."""

    method: str
    rate: float
    seed: int
    overlap: float = 0.4
    net: NetConfig = NetConfig()
    loss: LossConfig = LossConfig()
    train: TrainConfig = TrainConfig()
    keep: Literal["last", "best"] = "best"
    """Test the weights of the last epoch, or of the best one on validation rows held out."""
    kind: Kind = "uniform"
    """What goes missing (`data.missing.Scenario`)."""
    imbalance: float | None = None
    """Of training rows, with two parties: the first one's part of all rows held in full."""

    @property
    def shape(self) -> "Setting":
        """What runs of one trial have in common."""
        plain = replace(self, rate=0.0, seed=0, overlap=0.0, kind="uniform", imbalance=None)
        loss = replace(self.loss, lambda1=0.0, lambda2=0.0)
        return replace(
            plain, method=loss.method, loss=loss, train=replace(self.train, random_state=0)
        )

    def scenario(self, part: "Part") -> Scenario:
        """Say what is missing in a part's rows; test rows are all non-aligned."""
        if part == "test":
            return Scenario(0.0, self.rate, self.kind)
        if part == "whole":
            return Scenario(0.0, 0.0)
        return Scenario(self.overlap, self.rate, self.kind, self.imbalance)


class Trial:
    """A task in the scenarios of several settings, with its nets."""

    def __init__(
        self, task: Task, settings: Sequence[Setting], device: torch.device | None = None
    ) -> None:
        """Draw the rows and masks of every run and build the nets."""
        if len({each.shape for each in settings}) != 1:
            raise ValueError("the settings of a trial differ in more than seed, scenario and λ")
        self.task, self.settings, one = task, tuple(settings), settings[0]
        self.device = device or torch.device("cpu")
        self.seeds = [each.seed for each in settings]
        self.drawn = [Drawn(task, each) for each in settings]
        nets = build_parties(task.layouts, one.net, one.loss, self.seeds)
        self.method = self._method()
        self.method.heads.to(self.device)
        sides = [
            PartyWorker(
                name,
                nets[name].to(self.device),
                self._table(name, party),
                self.seeds,
                one.loss.reconstruction_weight,
            )
            for party, name in enumerate(task.layouts)
        ]
        self.federation = FusedFederation(sides)
        self._all = self._rows()

    def rows(self, part: Part) -> Rows:
        """Give the rows of a part, run after run."""
        return self._all.take(torch.cat(self._places(part)).to(self.device))

    def incomplete(self, part: Part) -> Tensor:
        """Say which parties the scenario made incomplete in a part's rows. (R, N, k)"""
        return torch.stack([run.incomplete[run.where(part)] for run in self.drawn])

    def train(self) -> None:
        """Train all runs for the whole budget and keep what the settings say."""
        setting = self.settings[0]
        captured = self.device.type == "cuda"
        rows, config = self.rows("train"), setting.train
        trainer = Trainer(self.federation, self.method, rows, config, self.seeds, captured)
        best = Best(self) if setting.keep == "best" else None
        for record in trainer.run(lambda: float(trainer.progress.epoch)):
            if best is not None and record.kind == "epoch":
                best.look()
        if best is not None:
            best.load()

    @torch.no_grad()
    def score(self) -> Tensor:
        """Score validation rows: minus the mean log-loss of local and collaborative. (R,)"""
        rows = self.rows("validation")
        ways: list[tuple[Mode, int]] = [("local", i) for i in range(len(self.federation.workers))]
        losses = []
        for mode, party in [*ways, ("collaborative", 0)]:
            if mode not in self.method.modes:
                continue
            out = logits(self.method, self.federation, rows, mode, party, self.device)
            asked = answerable(rows, mode, party).float().view(rows.runs, -1)
            loss = maths.cross_entropy(out, rows.y).view(rows.runs, -1)
            losses.append((loss * asked).sum(1) / asked.sum(1).clamp(min=1))
        return -torch.stack(losses).mean(0)

    def _method(self) -> Method:
        """Build the method; where λ differs between runs, each has its own."""
        one = self.settings[0]
        made = build_method(
            len(self.task.layouts),
            self.task.classes,
            any_image(self.task.layouts),
            one.net,
            one.loss,
            self.seeds,
        )
        if isinstance(made, XVFL):
            pairs = [(each.loss.lambda1, each.loss.lambda2) for each in self.settings]
            if len(set(pairs)) > 1:
                first, second = torch.tensor(pairs, dtype=torch.float64).T.to(self.device)
                made.weights = replace(made.weights, lambda1=first, lambda2=second)
        return made

    def _places(self, part: Part) -> list[Tensor]:
        count = len(self.drawn[0].base)
        return [torch.arange(count)[d.where(part)] + r * count for r, d in enumerate(self.drawn)]

    def _table(self, name: str, party: int) -> PartyTable:
        layout = self.task.layouts[name]
        values = torch.from_numpy(self.task.values[name]).to(self.device)
        codes = torch.from_numpy(self.task.buckets(name)).to(self.device)
        natural = torch.from_numpy(self.task.seen(name)).to(self.device)
        base = torch.cat([run.base for run in self.drawn]).to(self.device)
        mask = torch.cat([run.masks[party] for run in self.drawn]).to(self.device)
        observed = natural[base] & mask
        if layout.image is not None:
            pixels = observed.view(-1, 1, *layout.image[1:])
            return PartyTable(layout, values[base].float() / 255 * pixels, codes[base], observed)
        dense = torch.tensor(layout.feature_of_column[: layout.dense], device=self.device)
        first = layout.raw - len(layout.hashed)
        return PartyTable(
            layout, values[base] * observed[:, dense], codes[base] * observed[:, first:], observed
        )

    def _rows(self) -> Rows:
        tables = [cast(PartyTable, worker.table) for worker in self.federation.workers]
        seen = torch.stack([table.observed.any(1) for table in tables], 1)
        full = torch.cat([run.full for run in self.drawn]).to(self.device) & seen
        handles = torch.arange(len(seen), device=self.device).unsqueeze(1).expand(seen.shape)
        base = torch.cat([run.base for run in self.drawn])
        y = torch.from_numpy(self.task.y)[base].to(self.device)
        weight = torch.ones(len(y), device=self.device)
        return Rows(handles, full, seen, y, weight, runs=len(self.drawn))


class Drawn:
    """The rows and masks of one run: training, validation, test, and the test rows whole."""

    def __init__(self, task: Task, setting: Setting) -> None:
        """Draw them by the setting's seed."""
        parts = divide(task, setting)
        self._ends = torch.tensor([len(part) for part in parts.values()]).cumsum(0).tolist()
        self._names = list(parts)
        self.base = torch.cat(list(parts.values()))
        masks, incomplete = [], []
        for name, part in parts.items():
            seed = derive_seed(setting.seed, "test" if name == "whole" else name)
            made, who = setting.scenario(name).draw(
                len(part), list(task.layouts.values()), seed, _values(task, setting, part)
            )
            masks.append(made)
            incomplete.append(who)
        self.masks = [torch.cat(party) for party in zip(*masks, strict=True)]
        self.incomplete = torch.cat(incomplete)
        """Who misses something on purpose, or would at a rate above 0. (N, k)"""
        gaps = torch.stack([~mask.all(1) for mask in self.masks], 1)
        self.full = ~gaps

    def where(self, part: Part) -> slice:
        """Give the place of a part among the rows."""
        at = self._names.index(part)
        return slice(self._ends[at - 1] if at else 0, self._ends[at])


def _values(task: Task, setting: Setting, rows: Tensor) -> list[Tensor] | None:
    if setting.kind != "above":
        return None
    return [torch.from_numpy(task.raw_values(party))[rows] for party in task.layouts]


def divide(task: Task, setting: Setting) -> dict[Part, Tensor]:
    """Divide a task's rows: the fixed test rows, or a share drawn by the seed; validation."""
    order = torch.randperm(len(task), generator=named_generator("cpu", setting.seed, "rows"))
    if task.test is None:
        cut = round(len(order) * (1 - task.test_share))
        rest, test = order[:cut], order[cut:]
    else:
        fixed = torch.from_numpy(task.test)
        rest, test = order[~fixed[order]], fixed.nonzero().flatten()
    share = setting.train.validation_fraction if setting.keep == "best" else 0.0
    held = round(len(rest) * share)
    return {"train": rest[held:], "validation": rest[:held], "test": test, "whole": test}


class Best:
    """Each run's weights of its own best epoch, as the validation rows see it."""

    def __init__(self, trial: Trial) -> None:
        """Begin before the first epoch."""
        self.trial = trial
        sides = [worker.net for worker in trial.federation.workers]
        self.nets = [*sides, trial.method.heads]
        self.score = torch.full((len(trial.seeds),), -torch.inf, device=trial.device)
        self.states = [{k: v.clone() for k, v in net.state_dict().items()} for net in self.nets]

    def look(self) -> None:
        """Score the weights of now and keep them for the runs that did better than ever."""
        score = self.trial.score()
        better = score > self.score
        self.score = torch.where(better, score, self.score)
        for kept, net in zip(self.states, self.nets, strict=True):
            for key, now in net.state_dict().items():
                of_run = better.view(-1, *[1] * (now.dim() - 1))
                kept[key] = torch.where(of_run, now, kept[key])

    def load(self) -> None:
        """Put the best weights back."""
        for kept, net in zip(self.states, self.nets, strict=True):
            net.load_state_dict(kept)
