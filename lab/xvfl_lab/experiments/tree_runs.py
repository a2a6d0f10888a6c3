"""Gradient-boosted trees on the rows, masks and seeds of the other methods' runs.

`trees`: the trees of each party alone (`local`), and the mean of their logits over the parties that
observe the row (`collaborative`), which needs labels at every party. `trees pooled`: all columns in
one place, without privacy. Both are scored as the methods are. A way with the suffix of a variant
trains always with, or always without masks; without a suffix the validation rows choose.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor

from xvfl.config import TrainConfig
from xvfl.methods.base import Mode
from xvfl.model.trees import (
    MEAN,
    POOLED,
    VARIANTS,
    FittedTrees,
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


@dataclass(frozen=True)
class FittedRun:
    """The trees of a run, and the rows they were fitted on."""

    task: Task
    job: TreeJob
    data: RunRows
    trees: FittedTrees

    @property
    def pooled(self) -> bool:
        """Whether the trees have the columns of all parties."""
        return self.job.config.name == TREES_POOLED

    @property
    def modes(self) -> tuple[Mode, ...]:
        """The modes in which the trees predict."""
        return ("collaborative",) if self.pooled else ("local", "collaborative")

    @property
    def seconds(self) -> float:
        """CPU seconds of all fits."""
        return sum(self.trees.seconds.values())

    @cached_property
    def chosen(self) -> dict[Way, Masks]:
        """For each way, with or without masks, as the validation rows say."""
        parties = range(len(self.task.layouts))
        ways: list[Way] = [POOLED] if self.pooled else [*parties, MEAN]
        return {way: self.trees.choose(way) for way in ways}

    def predict(
        self, masks: Masks | None, part: Part, mode: Mode, parties: Iterable[int]
    ) -> Tensor:
        """Predict a part's rows; `masks` None: as chosen. (k, 1, N, C)"""
        ways: list[Way] = list(parties)
        if mode == "collaborative":
            ways = [POOLED if self.pooled else MEAN]
        at = np.arange(len(self.data.base))[self.data.where(part)]
        out = [self.trees.logits(way, masks or self.chosen[way], at) for way in ways]
        return torch.from_numpy(np.stack(out)).unsqueeze(1)

    def scored_rows(self, part: Part) -> ScoredRows:
        """Return which predictions of a part's rows count."""
        rows = self.data.where(part)
        y = torch.from_numpy(self.task.y)[self.data.base[rows]].unsqueeze(0)
        incomplete = self.data.incomplete[rows].T.unsqueeze(1)
        whole = mixed_rows([self.job.run], y.shape[1])
        return ScoredRows(y, incomplete, whole, tuple(self.task.layouts))


def fit_run(task: Task, job: TreeJob) -> FittedRun:
    """Fit the trees of a run, with one thread."""
    data = RunRows(task, job.run)
    owners: list[Owner] = [POOLED]
    if job.config.name != TREES_POOLED:
        owners = list(range(len(task.layouts)))
    settings, seed = job.config.settings, job.config.seed
    trees = fit_trees(tree_rows(task, data), owners, settings, seed, time.process_time)
    return FittedRun(task, job, data, trees)


def run_trees(task: Task, job: TreeJob) -> Result:
    """Fit and test trees; the seconds are CPU seconds of all fits, with one thread."""
    return score_run(fit_run(task, job))


def score_run(fitted: FittedRun) -> Result:
    """Test the trees of a run as the methods are tested."""
    scored = fitted.scored_rows("test")
    ways: dict[str, Pairs] = ways_of(scored, fitted.modes, partial(fitted.predict, None))
    for masks in VARIANTS:
        always = ways_of(scored, fitted.modes, partial(fitted.predict, masks))
        ways |= {mode + SUFFIXES[masks]: always[mode] for mode in fitted.modes}
    (metrics,) = metrics_of(ways)
    majority = majority_rate(scored.y[0].numpy())
    return Result(fitted.job.run, metrics, fitted.seconds, majority)


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
