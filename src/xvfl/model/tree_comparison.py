"""Compare a run with gradient-boosted trees, fitted and tested on the same rows."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from xvfl.dataset.in_memory import InMemoryDataset
from xvfl.errors import DataWarning, InputError
from xvfl.model.evaluation import ALL, Evaluation, Line
from xvfl.model.quick_trees import tree_rows
from xvfl.model.run_dir import EVALUATION, RunDir
from xvfl.model.trees import (
    MEAN,
    POOLED,
    FittedTrees,
    Owner,
    TreeConfig,
    Way,
    fit_trees,
    require_lightgbm,
)
from xvfl.model.workflow import evaluate_run, open_dataset, open_run
from xvfl.primitives.task import Task
from xvfl.system.report import Report, no_report


@dataclass(frozen=True)
class TreeLine:
    """Metrics of trees, and the model's metrics on the same rows."""

    way: str
    """`local`, `logit mean` (`mean` of numbers) or `pooled`."""
    party: str
    rows: int
    metrics: dict[str, float]
    model_metrics: dict[str, float]
    """Of mode `local`, or of `collaborative`; empty if the method does not have the mode."""
    masks: str
    """Whether the trees were trained with `random` masks or `none`, by the validation rows."""
    seconds: float
    """Of the fits with and without masks, with one thread."""


@dataclass(frozen=True)
class TreeComparison:
    """The evaluation of a run, and trees beside it."""

    evaluation: Evaluation
    lines: list[TreeLine]
    method: str
    model_seconds: float
    """Of the model's training."""

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON form: that of the evaluation, with the entry `trees`."""
        trees = {
            "lines": [asdict(line) for line in self.lines],
            "model_seconds": self.model_seconds,
            "settings": asdict(TreeConfig()),
        }
        return {**self.evaluation.to_dict(), "trees": trees}


def compare_with_trees(folder: RunDir, report: Report = no_report) -> TreeComparison:
    """Evaluate a run and trees of the same rows, and write evaluation.json.

    The trees train on the run's labeled training rows, choose the number of trees and between
    training with and without masks by its validation rows, and are tested on its held-out rows.
    """
    require_lightgbm()
    model, manifest, config = open_run(folder)
    for name, layout in model.layouts.items():
        if layout.image is not None:
            raise InputError(f"--compare trees: expected tables, but party {name!r} holds images")
    if isinstance(manifest["held_out"], str):
        raise InputError(
            "--compare trees: expected tables in memory, but this run was trained out of core; "
            "train on a sample of the rows with `out_of_core = false`"
        )
    evaluation = evaluate_run(folder, report)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # the training reported them
        labeled_only = replace(config, use_unlabeled=False)
        with open_dataset(labeled_only, Path(manifest["base_dir"]), folder) as dataset:
            assert isinstance(dataset, InMemoryDataset)
    rows, held_out = tree_rows(dataset), held_out_places(dataset, manifest["held_out"])
    parties = list(dataset.tables)
    owners: list[Owner] = [*range(len(parties)), POOLED]

    def fitting(owner: Owner, done: int) -> None:
        name = owner if isinstance(owner, str) else parties[owner]
        report(f"trees, {name}", done / len(owners))

    seed = config.train.random_state
    fitted = fit_trees(rows, owners, TreeConfig(), seed, on_owner=fitting)
    handles = dataset.rows.handles.numpy()
    lines = []
    for way, name, party in _ways(parties, rows.numbers):
        places = held_out if isinstance(way, str) else held_out[handles[held_out, way] >= 0]
        if len(places):
            lines.append(_line(fitted, way, name, party, places, evaluation.lines, dataset.task))
    seconds = training_seconds(folder.records())
    comparison = TreeComparison(evaluation, lines, model.loss.method, seconds)
    folder.write_json(EVALUATION, comparison.to_dict())
    return comparison


def held_out_places(dataset: InMemoryDataset, ids: Sequence[str]) -> np.ndarray[Any, Any]:
    """Return the places of the run's held-out rows; reject tables that changed since training.

    With other tables the split differs, and held-out rows would be training rows of the trees.
    """
    places = dataset.test if len(dataset.test) else dataset.validation
    if [dataset.ids[place] for place in places.tolist()] != list(ids):
        raise InputError(
            "--compare trees: expected the tables of the training, but their rows or labels "
            "changed; restore them, or train again"
        )
    return places.numpy()


def training_seconds(records: Sequence[Mapping[str, Any]]) -> float:
    """Add up the seconds of a training; the clock of a resumed training starts at 0."""
    seconds = [float(each["seconds"]) for each in records if each["kind"] == "epoch"]
    steps = zip([0.0, *seconds], seconds, strict=False)
    return round(sum(now - before if now > before else now for before, now in steps), 3)


def _ways(parties: Sequence[str], numbers: bool) -> list[tuple[Way, str, str]]:
    """List the ways to predict: the way, its name and its party."""
    mean = "mean" if numbers else MEAN
    local: list[tuple[Way, str, str]] = [(i, "local", name) for i, name in enumerate(parties)]
    return [*local, (MEAN, mean, ALL), (POOLED, POOLED, ALL)]


def _line(
    fitted: FittedTrees,
    way: Way,
    name: str,
    party: str,
    places: np.ndarray[Any, Any],
    model: Sequence[Line],
    task: Task,
) -> TreeLine:
    masks = fitted.choose(way)
    values = task.values(torch.from_numpy(fitted.logits(way, masks, places)))
    mode = "local" if name == "local" else "collaborative"
    beside = next((line for line in model if (line.mode, line.party) == (mode, party)), None)
    owners: list[Owner] = list(range(len(fitted.rows.tables))) if way == MEAN else [way]
    return TreeLine(
        name,
        party,
        len(places),
        task.metrics(values, task.restore(torch.from_numpy(fitted.rows.y[places]))),
        beside.metrics if beside else {},
        masks,
        round(sum(fitted.seconds[owner] for owner in owners), 3),
    )
