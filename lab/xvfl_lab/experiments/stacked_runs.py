"""Several runs of one method on one data set, trained at once: rows, masks, nets, training.

The runs of a stack differ in seed, scenario and λ only, so their nets have the same shapes: the
weights are stacked, and the rows of all runs go through them together. Without gradients, each
party trains its encoder alone and uploads embeddings once, and heads are trained on these
(`xvfl.federation.upload`). Torch and numpy alone.
Shapes: R runs, N rows of a run, k parties.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Literal

import torch
from torch import Tensor

import xvfl_lab.methods  # noqa: F401 - registers the lab's methods
from xvfl import maths
from xvfl.config import (
    NO_PROTECTION,
    EncoderConfig,
    LossConfig,
    NetConfig,
    PrivacyConfig,
    TrainConfig,
)
from xvfl.federation.fused import FusedFederation
from xvfl.federation.party_worker import PartyWorker
from xvfl.federation.privacy_accounting import state_privacy
from xvfl.federation.upload.encoder_net import build_encoder, encoder_net_config
from xvfl.federation.upload.encoder_training import EncoderTraining
from xvfl.federation.upload.heads import build_heads
from xvfl.federation.upload.private_worker import PrivateWorker
from xvfl.federation.upload.views import compute_views
from xvfl.methods import Method, Mode, protect_labels
from xvfl.methods.build import build_method, build_parties
from xvfl.methods.members import Members, member_seeds
from xvfl.methods.xvfl import XVFL
from xvfl.nets.party_net import PartyNet
from xvfl.options import Options, resolve_options, resolve_privacy
from xvfl.primitives.layout import any_image
from xvfl.primitives.masks import choose_unmasked_share
from xvfl.primitives.random import named_generator
from xvfl.primitives.rows import PartyTable, Rows
from xvfl.primitives.seeding import derive_seed
from xvfl.primitives.task import Classification
from xvfl.training.calibration import fit_decision_weights
from xvfl.training.loop import Trainer, pretraining_epochs
from xvfl.training.predict import logits, predictable_rows
from xvfl.training.threads import limit_threads
from xvfl_lab.scenarios import Kind, Scenario
from xvfl_lab.task import Task

CPU = torch.device("cpu")
Part = Literal["train", "validation", "unlabeled", "test", "whole"]
"""`test` rows are all non-aligned; `whole` are the same rows without simulated missing features.
`unlabeled` rows (y = −1) have the scenario of training rows; only encoders learn from them."""
LEARNED: tuple[Part, ...] = ("train", "unlabeled")
"""The rows that encoders learn from."""


@dataclass(frozen=True)
class RunConfig:
    """One run: a method in a scenario."""

    name: str
    """The method, or the name of an ablation."""
    rate: float
    """R_miss of training and test rows."""
    seed: int
    """Of rows, masks and initial weights."""
    overlap: float = 0.4
    """Fraction of the training rows that are aligned."""
    net: NetConfig = NetConfig()
    loss: LossConfig = LossConfig()
    train: TrainConfig = TrainConfig(optimizer="adamw")
    weights: Literal["last", "best", "calibrated"] = "best"
    """Test the weights of the last epoch, or of the best epoch on held-out validation rows.
    `calibrated`: of the best epoch, and `xvfl+` weighs its decisions as these rows say (D9)."""
    kind: Kind = "uniform"
    """Which features are missing (`xvfl_lab.scenarios.Scenario`)."""
    imbalance: float | None = None
    """Training rows of two parties: the first party's share of all full rows."""

    @property
    def shape(self) -> "RunConfig":
        """What the runs of a stack have in common."""
        plain = replace(self, rate=0.0, seed=0, overlap=0.0, kind="uniform", imbalance=None)
        loss = replace(self.loss, lambda1=0.0, lambda2=0.0)
        train = replace(self.train, random_state=0)
        return replace(plain, name=loss.method, loss=loss, train=train)

    def resolve(
        self,
        image: bool,
        parties: int,
        rows: int = 0,
        privacy: PrivacyConfig = NO_PROTECTION,
        upload_width: int = 0,
    ) -> Options:
        """Resolve the options of a run, which simulates a federation.

        `rows` is the number of training rows, `upload_width` that of embeddings if parties upload
        them.
        """
        return resolve_options(
            replace(self.net, embedding_dim=upload_width) if upload_width else self.net,
            self.loss,
            self.train,
            privacy,
            federated=True,
            image=image,
            parties=parties,
            rows=rows,
        )

    def scenario(self, part: "Part") -> Scenario:
        """Return the scenario of a part's rows; test rows are all non-aligned."""
        if part == "test":
            return Scenario(0.0, self.rate, self.kind)
        if part == "whole":
            return Scenario(0.0, 0.0)
        return Scenario(self.overlap, self.rate, self.kind, self.imbalance)


@contextmanager
def isolated(task: Task, device: torch.device) -> Iterator[None]:
    """Train without an effect on torch's random state, with as many threads as suit the task."""
    with torch.random.fork_rng(devices=[]), limit_threads(any_image(task.layouts), device):
        yield


class StackedRuns:
    """A task in the scenarios of several runs, with the stacked nets."""

    def __init__(
        self,
        task: Task,
        configs: Sequence[RunConfig],
        device: torch.device = CPU,
        privacy: PrivacyConfig = NO_PROTECTION,
        noise: bool = True,
        encoder: EncoderConfig | None = None,
        as_stored: bool = True,
    ) -> None:
        """Sample rows and masks of every run and build the nets.

        If `privacy` sends no gradients, the parties' encoders are trained here, as `encoder` says.
        Without `noise`, differential privacy has everything but its noise. Stored runs of
        interactive training have no bins of numbers, and members encode rows by themselves;
        `as_stored=False` encodes as today's defaults do.
        """
        if len({each.shape for each in configs}) != 1:
            raise ValueError("runs of one stack may differ in seed, scenario and λ only")
        self.task, self.configs, one = task, tuple(configs), configs[0]
        self.as_stored = as_stored
        self.device, self.seeds = device, [each.seed for each in configs]
        self.run_rows = [RunRows(task, each) for each in configs]
        self._base = torch.cat([run.base for run in self.run_rows]).to(device)
        count, image = len(self.places("train")[0]), any_image(task.layouts)
        privacy = resolve_privacy(privacy, federated=True)
        uploads = not privacy.sends_gradients
        encoder = encoder or EncoderConfig(epsilon=privacy.epsilon, delta=privacy.delta)
        width = encoder_net_config(encoder).embedding_dim if uploads else 0
        self.options = one.resolve(image, len(task.layouts), count, privacy, width)
        self.net = self.options.net
        self.statement = state_privacy(privacy)
        if self.statement is not None and not noise:
            self.statement = self.statement.without_noise()
        self.encoder_seconds = 0.0
        """Time of an epoch of all encoders."""
        self.tables = {name: self._table(name, at) for at, name in enumerate(task.layouts)}
        if uploads:
            views = {name: self._upload(name, encoder) for name in self.tables}
            classes = Classification(range(task.classes))
            self.method, self.federation = build_heads(
                views, self.options, self.seeds, classes, image
            )
            nets: list[PartyNet] = []
        else:
            self.method = self._method()
            workers = self._workers()
            self.federation = FusedFederation(workers)
            nets = [worker.net for worker in workers]
        self._set_lambdas()
        self.method.heads.to(self.device)
        self.nets = [*nets, self.method.heads]
        self.all_rows = self._rows()

    def _workers(self) -> list[PartyWorker]:
        """Build the parties of interactive training."""
        one, privacy = self.configs[0], self.options.privacy
        layouts = {
            name: replace(each, bins=(), differences=()) if self.as_stored else each
            for name, each in self.task.layouts.items()
        }
        nets = build_parties(
            layouts,
            self.net,
            one.loss,
            self.seeds,
            privacy=privacy,
            shared_inputs=not self.as_stored,
        )
        return [
            PartyWorker(
                name,
                net.to(self.device),
                self.tables[name],
                member_seeds(self.seeds, self.net.members),
                self.options.loss.reconstruction_weight,
                one.train.image_shift,
                self._unmasked_shares(self.tables[name]),
            )
            for name, net in nets.items()
        ]

    def _upload(self, name: str, config: EncoderConfig) -> Tensor:
        """Train a party's encoder on its training rows; return the views of all its rows."""
        table = self.tables[name]
        places = [torch.cat(pair) for pair in zip(*map(self.places, LEARNED), strict=True)]
        net = build_encoder(name, table.layout, config, self.seeds).to(self.device)
        handles = torch.arange(len(table), device=self.device)
        if self.statement is not None:
            private = PrivateWorker(name, net, table, self.seeds, self.statement.noise_std)
            return compute_views(private, handles, config.copies)
        training = EncoderTraining(
            name, net, table, torch.cat(places).to(self.device), config, self.seeds
        )
        ends = [time.perf_counter() for record in training.run() if record.kind == "epoch"]
        # Without the first epoch, in which nets are compiled.
        self.encoder_seconds += (ends[-1] - ends[0]) / max(len(ends) - 1, 1)
        return compute_views(training.worker, handles, config.copies)

    def rows(self, part: Part) -> Rows:
        """Return the rows of a part, run after run."""
        return self.all_rows.take(torch.cat(self.places(part)).to(self.device))

    def incomplete(self, part: Part) -> Tensor:
        """Return which parties the scenario made incomplete in a part's rows. (R, N, k)"""
        return torch.stack([run.incomplete[run.where(part)] for run in self.run_rows])

    def trainer(self, captured: bool = False) -> Trainer:
        """Return a trainer of all runs."""
        rows, options = self.rows("train"), self.options
        method = protect_labels(self.method, options.privacy, self.task.classes, self.seeds)
        image = any_image(self.task.layouts)
        return Trainer(
            self.federation,
            method,
            rows,
            options.train,
            self.seeds,
            captured,
            pretraining=pretraining_epochs(rows, options.loss, options.train, image),
            image=image,
        )

    def train(self, on_epoch: Callable[[], None] = lambda: None) -> None:
        """Train all runs for the whole budget; load the last or the best weights."""
        trainer = self.trainer(captured=self.device.type == "cuda")
        weights = self.configs[0].weights
        best = BestWeights(self) if weights != "last" else None
        for record in trainer.run(lambda: float(trainer.progress.epoch)):
            if record.kind == "epoch":
                on_epoch()
                epoch = record.progress.epoch - 1
                if best is not None and epoch >= trainer.pretraining:
                    best.update(partial(trainer.improves, epoch))
        if best is not None:
            best.load()
        if weights == "calibrated":
            fit_decision_weights(self.method, self.federation, self.rows("validation"))

    @torch.no_grad()
    def score(self) -> Tensor:
        """Score the validation rows: minus the mean log-loss of local and collaborative. (R,)"""
        rows = self.rows("validation")
        ways: list[tuple[Mode, int]] = [("local", i) for i in range(len(self.federation.workers))]
        losses = []
        for mode, party in [*ways, ("collaborative", 0)]:
            if mode not in self.method.modes:
                continue
            out = logits(self.method, self.federation, rows, mode, party, self.device)
            counted = predictable_rows(rows, mode, party).float().view(rows.runs, -1)
            loss = maths.cross_entropy(out, rows.y).view(rows.runs, -1)
            losses.append((loss * counted).sum(1) / counted.sum(1).clamp(min=1))
        return -torch.stack(losses).mean(0)

    def _method(self) -> Method:
        """Build the method of interactive training."""
        return build_method(
            len(self.task.layouts),
            Classification(range(self.task.classes)),
            any_image(self.task.layouts),
            self.net,
            self.options.loss,
            self.seeds,
            privacy=self.options.privacy,
        )

    def _set_lambdas(self) -> None:
        """Give runs whose λ differ a λ each."""
        inner = self.method.method if isinstance(self.method, Members) else self.method
        if isinstance(inner, XVFL):
            pairs = [(each.loss.lambda1, each.loss.lambda2) for each in self.configs]
            if len(set(pairs)) > 1:
                first, second = torch.tensor(pairs, dtype=torch.float64).T.to(self.device)
                inner.weights = replace(inner.weights, lambda1=first, lambda2=second)

    def places(self, part: Part) -> list[Tensor]:
        """Return the numbers of a part's rows among all rows, run by run."""
        count = len(self.run_rows[0].base)
        return [torch.arange(count)[d.where(part)] + r * count for r, d in enumerate(self.run_rows)]

    def _table(self, name: str, party: int) -> PartyTable:
        layout = self.task.layouts[name]
        arrays = (self.task.values[name], self.task.buckets(name), self.task.observed_at(name))
        values, codes, natural = (torch.from_numpy(a).to(self.device)[self._base] for a in arrays)
        mask = torch.cat([run.masks[party] for run in self.run_rows]).to(self.device)
        observed = natural & mask
        if layout.image is not None:
            pixels = observed.view(-1, 1, *layout.image[1:])
            return PartyTable(layout, values.float() / 255 * pixels, codes, observed)
        dense = torch.tensor(layout.feature_of_column[: layout.dense], device=self.device)
        first = layout.raw - len(layout.hashed)
        return PartyTable(
            layout, values * observed[:, dense], codes * observed[:, first:], observed
        )

    def _unmasked_shares(self, table: PartyTable) -> list[float]:
        """Return the share of masked copies that keep all features, for each member of each run."""
        share = self.options.loss.unmasked_copies
        train = (table.observed[rows.to(self.device)] for rows in self.places("train"))
        shares = [choose_unmasked_share(table.layout, observed, share) for observed in train]
        return [each for each in shares for _ in range(self.net.members)]

    def _rows(self) -> Rows:
        seen = torch.stack([table.observed.any(1) for table in self.tables.values()], 1)
        full = torch.cat([run.full for run in self.run_rows]).to(self.device) & seen
        handles = torch.arange(len(seen), device=self.device).unsqueeze(1).expand(seen.shape)
        y = torch.from_numpy(self.task.y).to(self.device)[self._base]
        weight = torch.ones(len(y), device=self.device)
        rows = Rows(handles, full, seen, y, weight, runs=len(self.run_rows))
        return rows if self.statement is None else rows.hide_missing()


class RunRows:
    """Rows and masks of one run: training, validation, test, and the test rows whole."""

    def __init__(self, task: Task, config: RunConfig) -> None:
        """Sample them by the seed of the run."""
        parts = split_rows(task, config)
        ends = accumulate(map(len, parts.values()))
        self._slices = {
            name: slice(end - len(parts[name]), end) for name, end in zip(parts, ends, strict=True)
        }
        self.base = torch.cat(list(parts.values()))
        masks, incomplete = [], []
        for name, part in parts.items():
            seed = derive_seed(config.seed, "test" if name == "whole" else name)
            observed, pairs = config.scenario(name).sample(
                len(part), list(task.layouts.values()), seed, _values(task, config, part)
            )
            masks.append(observed)
            incomplete.append(pairs)
        self.masks = [torch.cat(party) for party in zip(*masks, strict=True)]
        self.incomplete = torch.cat(incomplete)
        """Pairs with simulated missing features, or that would have them at a rate above 0. (N, k)
        """
        self.full = torch.stack([mask.all(1) for mask in self.masks], 1)

    def where(self, part: Part) -> slice:
        """Return the position of a part among the rows."""
        return self._slices[part]


def _values(task: Task, config: RunConfig, rows: Tensor) -> list[Tensor] | None:
    if config.kind != "above":
        return None
    return [torch.from_numpy(task.raw_values(party))[rows] for party in task.layouts]


def split_rows(task: Task, config: RunConfig) -> dict[Part, Tensor]:
    """Split a task's rows: fixed test rows, or a fraction sampled by the seed; then validation."""
    has_label = torch.from_numpy(task.y) >= 0
    labeled = has_label.nonzero().flatten()
    order = labeled[torch.randperm(len(labeled), generator=_row_generator(config))]
    if task.test is None:
        cut = round(len(order) * (1 - task.test_share))
        rest, test = order[:cut], order[cut:]
    else:
        fixed = torch.from_numpy(task.test)
        rest, test = order[~fixed[order]], fixed.nonzero().flatten()
    fraction = config.train.validation_fraction if config.weights != "last" else 0.0
    count = round(len(rest) * fraction)
    return {
        "train": rest[count:],
        "validation": rest[:count],
        "unlabeled": (~has_label).nonzero().flatten(),
        "test": test,
        "whole": test,
    }


def _row_generator(config: RunConfig) -> torch.Generator:
    return named_generator("cpu", config.seed, "rows")


class BestWeights:
    """The weights of each run's best epoch on the validation rows."""

    def __init__(self, stack: StackedRuns) -> None:
        """Start before the first epoch."""
        self.stack = stack
        self.score = torch.full((len(stack.seeds),), -torch.inf, device=stack.device)
        self.states = [{k: v.clone() for k, v in net.state_dict().items()} for net in stack.nets]

    def update(self, improves: Callable[[float, float], bool]) -> None:
        """Score the current weights; store them for the runs whose score `improves` on the best."""
        score = self.stack.score()
        pairs = zip(score.tolist(), self.score.tolist(), strict=True)
        better = torch.tensor([improves(*pair) for pair in pairs], device=score.device)
        self.score = torch.where(better, score, self.score)
        for stored, net in zip(self.states, self.stack.nets, strict=True):
            for key, current in net.state_dict().items():
                # A single run may have no stack; members can share a weight.
                nets = len(current) // len(better) if len(better) > 1 else 1
                of_run = better.repeat_interleave(nets).view(-1, *[1] * (current.dim() - 1))
                stored[key] = torch.where(of_run, current, stored[key])

    def load(self) -> None:
        """Load the best weights."""
        for stored, net in zip(self.states, self.stack.nets, strict=True):
            net.load_state_dict(stored)
