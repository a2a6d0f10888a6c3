"""Train and test one method in one scenario. Torch and numpy alone.

One protocol for every method: masks drawn by the scenario's seed, a fixed budget of epochs, the
weights of the last one, test rows all non-aligned.
"""

import time
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from xvfl.config import LossConfig, NetConfig, TrainConfig
from xvfl.data.missing import scenario
from xvfl.data.rows import PartyTable, Rows
from xvfl.federation.build import build_method, build_parties
from xvfl.federation.fused import Fused
from xvfl.federation.kernels import small_kernels
from xvfl.federation.party import PartySide
from xvfl.federation.predict import logits
from xvfl.federation.train import Trainer
from xvfl.layout import Layout
from xvfl.methods.base import Method, Mode
from xvfl.methods.xvfl import XVFL
from xvfl.metrics import all_metrics, majority_rate
from xvfl.streams import stream

ZERO_FILL = " zero-filled"


@dataclass(frozen=True)
class Task:
    """A prepared data set, split over parties; everything observed but its natural gaps."""

    name: str
    layouts: dict[str, Layout]
    values: dict[str, NDArray[np.float32]]
    observed: dict[str, NDArray[np.bool_]]
    y: NDArray[np.int64]
    test_share: float

    @property
    def classes(self) -> int:
        """Number of classes."""
        return int(self.y.max()) + 1


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


@dataclass(frozen=True)
class Result:
    """Metrics of every way to predict, over (row, party) pairs where the party is incomplete."""

    setting: Setting
    metrics: dict[str, dict[str, float]]
    seconds: float
    majority: float
    """Accuracy of always saying the commonest class of the test rows."""


class Trial:
    """A task in a scenario, with its nets."""

    def __init__(self, task: Task, setting: Setting) -> None:
        """Draw the masks and build the nets."""
        self.task, self.setting = task, setting
        self.order, self.cut = _divide(task, setting.seed)
        rates = (setting.overlap, 0.0)
        raw = [layout.raw for layout in task.layouts.values()]
        counts = (self.cut, len(task.y) - self.cut)
        drawn = [
            scenario(n, raw, overlap, setting.rate, 2 * setting.seed + part)
            for part, (n, overlap) in enumerate(zip(counts, rates, strict=True))
        ]
        self.incomplete = torch.cat([who for _, who in drawn])
        self.masks = [torch.cat([m[i] for m, _ in drawn]) for i in range(len(raw))]
        nets = build_parties(task.layouts, setting.net, [setting.seed])
        self.method = build_method(
            task.layouts, task.classes, setting.net, setting.loss, [setting.seed]
        )
        weight = setting.loss.our_weights[1]
        sides = [
            PartySide(name, nets[name], self._table(name, i), [setting.seed], weight)
            for i, name in enumerate(task.layouts)
        ]
        self.federation = Fused(sides)
        self.rows = self._rows()

    def train(self) -> None:
        """Train on the training rows for the whole budget."""
        rows = self.rows.take(torch.arange(self.cut))
        trainer = Trainer(self.federation, self.method, rows, self.setting.train)
        for _ in trainer.run(lambda: float(trainer.progress.epoch)):
            pass

    def test(self) -> dict[str, dict[str, float]]:
        """Measure every mode on the test rows; X-VFL also with its completion left out."""
        found = self._measure(self.method, "")
        if isinstance(self.method, XVFL):
            plain = XVFL(self.method.heads, self.method.weights, completing=False)
            found |= self._measure(plain, ZERO_FILL)
        return found

    def _measure(self, method: Method, suffix: str) -> dict[str, dict[str, float]]:
        test = torch.arange(self.cut, len(self.rows))
        rows, incomplete = self.rows.take(test), self.incomplete[test]
        found = {}
        for mode in sorted(method.modes):
            out, y = self._pairs(method, rows, incomplete, mode)
            proba = torch.softmax(out.double(), -1).numpy()
            found[mode + suffix] = all_metrics(proba, y.numpy())
        return found

    def _pairs(
        self, method: Method, rows: Rows, incomplete: Tensor, mode: Mode
    ) -> tuple[Tensor, Tensor]:
        if mode == "collaborative":
            return logits(method, self.federation, rows, mode, 0), rows.y
        outs, labels = [], []
        for party in range(incomplete.shape[1]):
            mine = incomplete[:, party].nonzero().flatten()
            outs.append(logits(method, self.federation, rows.take(mine), mode, party))
            labels.append(rows.y[mine])
        return torch.cat(outs), torch.cat(labels)

    def _table(self, name: str, party: int) -> PartyTable:
        layout = self.task.layouts[name]
        observed = torch.from_numpy(self.task.observed[name])[self.order] & self.masks[party]
        values = torch.from_numpy(self.task.values[name])[self.order]
        columns = torch.tensor(layout.feature_of_column)
        codes = torch.zeros(len(values), 0, dtype=torch.long)
        return PartyTable(layout, values * observed[:, columns], codes, observed)

    def _rows(self) -> Rows:
        seen = torch.stack([side.table.observed.any(1) for side in self.federation.sides], 1)
        gaps = self.incomplete if self.setting.rate > 0 else torch.zeros_like(self.incomplete)
        handles = torch.arange(len(seen)).unsqueeze(1).expand(seen.shape)
        y = torch.from_numpy(self.task.y)[self.order]
        return Rows(handles.masked_fill(~seen, -1), seen & ~gaps, seen, y, torch.ones(len(y)))


def run(task: Task, setting: Setting) -> Result:
    """Train and test one method in one scenario."""
    started = time.perf_counter()
    with torch.random.fork_rng(devices=[]), small_kernels(task.layouts, torch.device("cpu")):
        trial = Trial(task, setting)
        trial.train()
        metrics = trial.test()
    majority = majority_rate(trial.rows.y[trial.cut :].numpy())
    return Result(setting, metrics, time.perf_counter() - started, majority)


def _divide(task: Task, seed: int) -> tuple[Tensor, int]:
    order = torch.randperm(len(task.y), generator=stream("cpu", seed, "rows"))
    return order, round(len(order) * (1 - task.test_share))
