"""Answers to callers: the prediction of each row, and how it was obtained.

The twin of `xvfl.model.prediction` for rows whose features stay at the parties.
Shapes: N rows, k parties, K of them answered, C outputs.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from xvfl.federation.predict_in_time import TimelyBatch
from xvfl.model.decision_rule import predicted_classes
from xvfl.primitives.task import Task
from xvfl.service.trained_heads import TrainedHeads
from xvfl_serve.row_report import (
    NOT_OBSERVED,
    REFUSED_MODE,
    ObservedRows,
    PredictionKind,
    describe_rows,
)

NOT_COMPLETED = "no time for completion: observed features alone"


def collaborative_answers(
    model: TrainedHeads,
    out: Tensor,
    batch: TimelyBatch,
    n_features: Sequence[int],
    completed_in_time: bool,
    unreachable: Mapping[str, str],
    holders: Sequence[Sequence[str]],
) -> list[dict[str, Any]]:
    """Build the answers of a batch.

    `out` are the logits (N, C) of the parties that took part, which have `n_features` features;
    `unreachable` are the other parties, with the reason. `holders` are the parties that hold each
    row, or of which this is not known yet.
    """
    n, features = len(batch.rows), np.asarray(n_features, dtype=np.int64)
    missing = np.rint(features * (1 - batch.observed.double().numpy())).astype(np.int64)
    observed = ObservedRows(batch.rows.seen.numpy(), batch.rows.full.numpy(), missing, features)
    completes = model.completes and completed_in_time
    parties = tuple(model.names[i] for i in batch.places)
    kind = PredictionKind("collaborative", "", parties, completes, completes)
    report = describe_rows(kind, "assisted" in model.method.modes, False, observed)
    values = np.tile(np.asarray(model.prior, dtype=float), (n, 1))
    if batch.places:
        scaled = model.task.values(out.double() / model.temperature("collaborative"))
        values = np.where(np.asarray(report.prior)[:, None], values, scaled)
    names = np.asarray(parties, dtype=object)
    refused = batch.refused.numpy()
    answers = []
    for i in range(n):
        absent = {name: unreachable[name] for name in holders[i] if name in unreachable}
        notes = [f"{names[j]}: {batch.refusals[j]}" for j in refused[i].nonzero()[0]]
        mode = report.mode[i]
        if report.prior[i]:
            mode = REFUSED_MODE if notes else mode
            notes += prior_notes(model.task, bool(notes), absent)
        elif model.completes and not completed_in_time:
            notes.append(NOT_COMPLETED)
        answers.append(
            {
                **predicted(model.task, values[i] if mode != REFUSED_MODE else None),
                "mode": mode,
                "parties": report.parties[i],
                "unreachable": dict(unreachable),
                "refused": names[refused[i]].tolist(),
                "completed": round(report.completed[i], 6),
                "notes": notes,
            }
        )
    return answers


def prior_notes(task: Task, refused: bool, absent: Mapping[str, str]) -> list[str]:
    """Tell why no party contributed to a row: `absent` parties may have observed it."""
    notes = absent_notes(absent)
    if refused:
        return notes
    if not notes:
        return [f"{NOT_OBSERVED}: {task.prior_name}"]
    return [*notes, f"not observed by a party that answered: {task.prior_name}"]


def absent_notes(absent: Mapping[str, str]) -> list[str]:
    """Name parties that were not asked or did not answer, with the reason."""
    return [f"unreachable: {name} ({reason})" for name, reason in absent.items()]


def prior_answer(task: Task, prior: Sequence[float], note: str) -> dict[str, Any]:
    """Answer a row that no party holds."""
    return {
        **predicted(task, np.asarray(prior, dtype=float)),
        "mode": "prior",
        "parties": [],
        "unreachable": {},
        "refused": [],
        "completed": 0.0,
        "notes": [note],
    }


def predicted(task: Task, values: NDArray[np.float64] | None) -> dict[str, Any]:
    """Return the prediction of one row, with the probabilities of classes; null without values."""
    if values is None:
        return {"prediction": None}
    if not task.classes:
        return {"prediction": float(values[0])}
    label = task.classes[int(predicted_classes(values[None], None)[0])]
    probabilities = {str(each): float(p) for each, p in zip(task.classes, values, strict=True)}
    return {"prediction": label, "probabilities": probabilities}
