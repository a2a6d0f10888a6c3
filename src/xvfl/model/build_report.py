"""Build the report of a training from its validation rows."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from xvfl.dataset.in_memory import InMemoryDataset
from xvfl.dataset.on_disk.on_disk_dataset import OnDiskDataset
from xvfl.federation.fused import FusedFederation
from xvfl.methods import MODES, Method
from xvfl.methods.base import mode_key
from xvfl.methods.pooling import decision_weights, pooling_method, prediction_views
from xvfl.methods.xvfl import COMPLETED
from xvfl.model.evaluation import ALL, Evaluation, evaluate, federation_predictions
from xvfl.model.fit_report import METRICS, CompletionUse, FitReport, Score
from xvfl.model.model import Model
from xvfl.model.quick_trees import QuickTrees, fit_quick_trees
from xvfl.primitives.rows import Rows
from xvfl.primitives.task import Task
from xvfl.training.calibration import MIN_ROWS_TO_POOL, CompletionLosses
from xvfl.training.predict import mode_party_pairs, predictable_rows

MAX_ROWS = 3_000
"""Validation rows that are scored; of more, some evenly spaced ones."""
MAX_HINTS = 2
FEW_ROWS = 200
"""Fewer validation rows than this do not tell methods apart."""
LEAK_SCORE, LEAK_GAIN = 0.97, 0.8
"""AUROC, or R², of trees and the share of their gain from which one column may tell the label."""
MUCH_MISSING = 0.5
IMPROVING = 0.02
"""Share by which the loss of the last fifth of the epochs is lower while training still helps."""


def build_report(
    dataset: InMemoryDataset | OnDiskDataset,
    model: Model,
    federation: FusedFederation,
    validation: Rows,
    losses: CompletionLosses,
    records: Sequence[Mapping[str, Any]],
    epochs: int,
) -> FitReport:
    """Score the modes of a calibrated model on validation rows, beside trees.

    `losses` are those of `calibrate`; `records` those of the epochs, of which there are at most
    `epochs`.
    """
    index = torch.arange(len(validation))[:: -(-len(validation) // MAX_ROWS)]
    rows, task = validation.take(index.to(validation.device)), model.task
    evaluation = evaluate(
        federation_predictions(model.method, federation, rows, task, MODES, model.temperatures),
        "validation",
        task,
    )
    trees = fit_quick_trees(dataset, index, model.random_state)
    fitted = None if isinstance(trees, str) else trees
    y = task.restore(rows.y)
    scores = [
        Score(
            each.mode, each.party, each.rows, each.metrics, _beside(each.mode, each.party, fitted)
        )
        for each in evaluation.lines
    ]
    report = FitReport(
        model.loss.method,
        task.kind,
        asdict(dataset.row_counts()),
        {name: layout.raw for name, layout in model.layouts.items()},
        dict(dataset.missing_share),
        task.metrics(np.tile(np.asarray(model.prior), (len(y), 1)), y),
        sorted(scores, key=lambda each: MODES[::-1].index(each.mode)),
        list(_completion_uses(model.method, federation, validation, task, losses)),
        0 if fitted is None else fitted.rows,
        trees if isinstance(trees, str) else "",
        [],
    )
    hints = _hints(report, evaluation, fitted, records, epochs)
    report.hints.extend([*hints][:MAX_HINTS])
    return report


def _beside(mode: str, party: str, trees: QuickTrees | None) -> dict[str, float]:
    """Return the metrics of trees beside those of a mode; `assisted` has none."""
    if trees is None or mode == "assisted":
        return {}
    return trees.metrics.get(None if party == ALL else party, {})


def _completion_uses(
    method: Method,
    federation: FusedFederation,
    rows: Rows,
    task: Task,
    losses: CompletionLosses,
) -> Iterator[CompletionUse]:
    """Tell for each mode and party whether completed features are used, and why not."""
    completes = "self" in prediction_views(method)
    weights = decision_weights(method)
    for mode, party in mode_party_pairs(method, federation):
        if mode == "peers":
            continue
        name = federation.names[party]
        shown = ALL if mode == "collaborative" else name
        some = rows.take(predictable_rows(rows, mode, party).nonzero().flatten())
        full = some.full if mode == "collaborative" else some.full[:, [party]]
        chosen = torch.as_tensor(weights.get(mode_key(mode, name), COMPLETED))
        share, reason = float(chosen[1]), ""
        if not completes:
            share, reason = 0.0, "the method completes nothing"
        elif bool(full.all()):
            share, reason = 0.0, "no validation row has a gap"
        elif pooling_method(method) is None:
            reason = "always, by the method"
        elif len(some) < MIN_ROWS_TO_POOL:
            reason = f"by default: fewer than {MIN_ROWS_TO_POOL} validation rows to choose"
        elif share == 0:
            loss = losses[mode_key(mode, name)]
            reason = f"validation {task.score_name} {loss[0]:.4f} without it, {loss[1]:.4f} with it"
        yield CompletionUse(mode, shown, share, reason)


def _hints(
    report: FitReport,
    evaluation: Evaluation,
    trees: QuickTrees | None,
    records: Sequence[Mapping[str, Any]],
    epochs: int,
) -> Iterator[str]:
    """Yield what to try next, the most important first."""
    metric, heading = next(iter(METRICS[report.task].items()))
    margin = max(0.01, 0.5 / math.sqrt(max(report.rows["validation"], 1)))
    best = max(each.metrics[metric] for each in report.scores)
    nothing = report.baseline[metric] if report.task == "classification" else 0.0
    if best <= nothing + margin:
        yield (
            "check that the ids of labels and tables belong together (overlap_), and how columns "
            "are read (describe): no mode is better than the class frequencies or the mean"
        )
    if trees is not None:
        party, column, gain = trees.top_column
        if gain >= LEAK_GAIN and trees.metrics[None][metric] >= LEAK_SCORE:
            yield (
                f"check that column {column!r} of {party} is known at prediction: it makes "
                f"{gain:.0%} of what trees gain; if it is not, ignore it (drop)"
            )
    if _still_improves(records, epochs):
        yield f"more epochs: the validation loss still fell at the end of {epochs}"
    remedy = "larger nets (hidden_dim, embedding_dim)"
    if len(records) >= epochs:
        remedy = f"more epochs or {remedy}"
    yield from _score_hints(report, evaluation, metric, heading, margin, remedy)
    yield from _row_hints(report)


def _score_hints(
    report: FitReport,
    evaluation: Evaluation,
    metric: str,
    heading: str,
    margin: float,
    remedy: str,
) -> Iterator[str]:
    """Compare all parties together with trees, and with each party alone."""
    joint = next((each for each in report.scores if each.party == ALL), None)
    if joint is not None and joint.trees and joint.trees[metric] > joint.metrics[metric] + margin:
        yield (
            f"{remedy}: trees of all columns in one place have {heading} "
            f"{joint.trees[metric]:.3f}, collaborative {joint.metrics[metric]:.3f}"
        )
    for same in evaluation.same_rows:
        own, all_parties = same.metrics.get("local"), same.metrics.get("collaborative")
        if own and all_parties and own[metric] > all_parties[metric] + margin:
            yield (
                f"mode='local' for {same.party}: alone it has {heading} {own[metric]:.3f} on its "
                f"rows, with the others {all_parties[metric]:.3f}"
            )


def _row_hints(report: FitReport) -> Iterator[str]:
    """Look at the number of rows and of missing cells."""
    count = report.rows["validation"]
    if count < FEW_ROWS:
        yield (
            f"cross_val_score, or more labels: scores of {count} validation rows may be off by "
            f"{0.5 / math.sqrt(max(count, 1)):.2f} by chance"
        )
    for name, share in report.missing.items():
        if share > MUCH_MISSING:
            yield (
                f"describe(tables): half of the columns of {name} miss {share:.0%} of their cells "
                "or more; drop columns that are hardly ever known"
            )


def _still_improves(records: Sequence[Mapping[str, Any]], epochs: int) -> bool:
    """Return whether the last fifth of all epochs lowered the validation loss."""
    scores = [each["score"] for each in records if math.isfinite(each["score"])]
    last = max(1, len(scores) // 5)
    if len(records) < epochs or len(scores) < 2:
        return False
    before, after = -max(scores[:-last]), -max(scores[-last:])
    return bool(after < before - IMPROVING * abs(before))
