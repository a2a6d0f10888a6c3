"""Gradient-boosted trees on the rows, masks and seeds of the other methods' runs.

`trees`: the trees of each party alone (`local`), and the mean of their logits over the parties that
observe the row (`collaborative`), which needs labels at every party. `trees pooled`: all columns in
one place, without privacy. Both are scored as the methods are. A way with the suffix of a variant
trains always with, or always without masks; without a suffix the validation rows choose.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from xvfl.config import TrainConfig
from xvfl.methods.base import Mode
from xvfl.model.trees import (
    MEAN,
    POOLED,
    VARIANTS,
    Masks,
    Owner,
    TreeConfig,
    TreeRows,
    TreeTable,
    Way,
    fit_trees,
)
from xvfl.primitives.metrics import majority_rate
from xvfl.primitives.rows import PartyTable
from xvfl_lab.experiments.dispatch import Load, hardware, task_of
from xvfl_lab.experiments.figures import Job
from xvfl_lab.experiments.run_store import RunStore
from xvfl_lab.experiments.runner import (
    Pairs,
    Result,
    ScoredRows,
    metrics_of,
    mixed_rows,
    ways_of,
)
from xvfl_lab.experiments.stacked_runs import Part, RunConfig, RunRows
from xvfl_lab.scenarios import Kind
from xvfl_lab.task import Task

TREES, TREES_POOLED = "trees", "trees pooled"
SUFFIXES: dict[Masks, str] = {"none": " without masks", "random": " with masks"}


@dataclass(frozen=True)
class TreeRun:
    """One run of trees in a scenario; see `RunConfig`."""

    name: str
    """`trees` or `trees pooled`."""
    rate: float
    seed: int
    overlap: float = 0.4
    kind: Kind = "uniform"
    imbalance: float | None = None
    validation_fraction: float = 0.15
    settings: TreeConfig = field(default_factory=TreeConfig)


@dataclass(frozen=True)
class TreeJob:
    """One run of trees on a data set."""

    dataset: str
    parties: int
    train_rows: int
    test_rows: int
    config: TreeRun

    @property
    def run(self) -> RunConfig:
        """The configuration that results report; its rows and masks are those of the run."""
        c = self.config
        train = replace(TrainConfig(), validation_fraction=c.validation_fraction)
        scenario = {"kind": c.kind, "imbalance": c.imbalance}
        return RunConfig(c.name, c.rate, c.seed, c.overlap, train=train, **scenario)  # type: ignore[arg-type]

    def task(self, load: Load) -> Task:
        """Load the data set with the rows of the budget."""
        rows = (self.train_rows, self.test_rows)
        return task_of(load, Job(self.dataset, self.parties, *rows, self.run))


EXAMPLE = TreeJob("", 0, 0, 0, TreeRun(TREES, 0.0, 0))


def tree_jobs_beside(jobs: Iterable[Job]) -> list[TreeJob]:
    """List the runs of trees with the rows and masks of other runs."""
    made = []
    for job in jobs:
        c = job.config
        fraction = c.train.validation_fraction if c.weights != "last" else 0.0
        scenario = (c.rate, c.seed, c.overlap, c.kind, c.imbalance, fraction)
        rows = (job.dataset, job.parties, job.train_rows, job.test_rows)
        made += [TreeJob(*rows, TreeRun(name, *scenario)) for name in (TREES, TREES_POOLED)]
    return list(dict.fromkeys(made))


def execute_trees(job: TreeJob, store: RunStore, load: Load) -> None:
    """Compute a run and store its result."""
    task = job.task(load)
    store.add(job, run_trees(task, job), hardware("cpu"), task.digest())


def run_trees(task: Task, job: TreeJob) -> Result:
    """Fit and test trees; the seconds are CPU seconds of all fits, with one thread."""
    data = RunRows(task, job.run)
    rows, pooled = tree_rows(task, data), job.config.name == TREES_POOLED
    owners: list[Owner] = [POOLED] if pooled else list(range(len(task.layouts)))
    fitted = fit_trees(rows, owners, job.config.settings, job.config.seed, time.process_time)
    chosen = {way: fitted.choose(way) for way in ([POOLED] if pooled else [*owners, MEAN])}
    places = np.arange(len(data.base))

    def predict(masks: Masks | None, part: Part, mode: Mode, parties: Iterable[int]) -> Tensor:
        ways: list[Way] = list(parties)
        if mode == "collaborative":
            ways = [POOLED if pooled else MEAN]
        at = places[data.where(part)]
        out = [fitted.logits(way, masks or chosen[way], at) for way in ways]
        return torch.from_numpy(np.stack(out)).unsqueeze(1)

    modes: tuple[Mode, ...] = ("collaborative",) if pooled else ("local", "collaborative")
    scored = scored_rows(task, data, job.run)
    ways: dict[str, Pairs] = ways_of(scored, modes, partial(predict, None))
    for masks in VARIANTS:
        always = ways_of(scored, modes, partial(predict, masks))
        ways |= {mode + SUFFIXES[masks]: always[mode] for mode in modes}
    (metrics,) = metrics_of(ways)
    seconds = sum(fitted.seconds.values())
    return Result(job.run, metrics, seconds, majority_rate(scored.y[0].numpy()))


def tree_rows(task: Task, data: RunRows) -> TreeRows:
    """Return a run's rows as trees read them: training, validation, test, and whole test rows."""
    tables = []
    for party, (name, layout) in enumerate(task.layouts.items()):
        arrays = (task.values[name], task.buckets(name), task.observed_at(name))
        values, codes, natural = (torch.from_numpy(each)[data.base] for each in arrays)
        observed = natural & data.masks[party]
        tables.append(TreeTable.from_party(PartyTable(layout, values, codes, observed)))
    places = np.arange(len(data.base))
    train, validation = (places[data.where(part)] for part in ("train", "validation"))
    weight = np.ones(len(places))
    return TreeRows(tables, task.y[data.base.numpy()], weight, train, validation, task.classes)


def scored_rows(task: Task, data: RunRows, run: RunConfig) -> ScoredRows:
    """Return which predictions of a run's test rows count."""
    test = data.where("test")
    y = torch.from_numpy(task.y)[data.base[test]].unsqueeze(0)
    incomplete = data.incomplete[test].T.unsqueeze(1)
    return ScoredRows(y, incomplete, mixed_rows([run], y.shape[1]), tuple(task.layouts))
