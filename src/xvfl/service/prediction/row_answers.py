"""Answers to callers: the prediction of each row, and how it was obtained.

The twin of `xvfl.model.prediction` for rows whose features stay at the parties.
Shapes: N rows, k parties, K of them answered, C outputs.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from xvfl.federation.predict_in_time import TimelyBatch
from xvfl.methods.base import Mode
from xvfl.model.decision_rule import predicted_classes
from xvfl.primitives.task import Task
from xvfl.service.trained_heads import TrainedHeads
from xvfl.wire.messages import RowAnswer
from xvfl_serve.row_report import (
    NO_PEER,
    NOT_OBSERVED,
    REFUSED_MODE,
    ObservedRows,
    PredictionKind,
    describe_rows,
)

NOT_ANSWERED = "not observed by a party that answered"
NOT_COMPLETED = "no time for completion: observed features alone"


def answer_rows(
    model: TrainedHeads,
    out: Tensor,
    batch: TimelyBatch,
    n_features: Sequence[int],
    in_time: bool,
    absent: Sequence[Mapping[str, str]],
    party: str = "",
) -> tuple[NDArray[np.float64], list[RowAnswer]]:
    """Return the values (N, C) of a batch in mode collaborative, and how each was obtained.

    `out` are the logits (N, C) of the parties that took part, which have `n_features` features, and
    completed rows `in_time`. `absent` are those of the other parties that may hold each row, with
    the reason. With `party`, the mode is assisted; a row that this party refuses is refused.
    """
    mode: Mode = "assisted" if party else "collaborative"
    parties = tuple(model.names[i] for i in batch.places)
    completes = model.completes(mode, party)
    local_completes = model.completes("local", party) and in_time
    kind = PredictionKind(mode, party, parties, completes and in_time, local_completes)
    features, refused = np.asarray(n_features, dtype=np.int64), batch.refused.numpy()
    missing = np.rint(features * (1 - batch.observed.double().numpy())).astype(np.int64)
    # Whether a row has a gap at a party that refuses it is not known.
    known = ~refused[:, [kind.index]] if party else np.True_
    seen, full = batch.rows.seen.numpy() & known, batch.rows.full.numpy() & known
    partial_peers = model.loss.self_completion_weight > 0
    observed = ObservedRows(seen, full, missing, features)
    report = describe_rows(kind, "assisted" in model.method.modes, partial_peers, observed)
    values = np.tile(np.asarray(model.prior, dtype=float), (len(seen), 1))
    if batch.places:
        local, requested = model.temperature("local", party), model.temperature(mode, party)
        temperature = torch.where(torch.tensor(report.alone), local, requested).unsqueeze(1)
        predicted = model.task.values(out.double() / temperature)
        values = np.where(np.asarray(report.prior)[:, None], values, predicted)
    refusals, answers = [each.refusal for each in batch.answers.values()], []
    for i, used in enumerate(report.mode):
        at = refused[i].nonzero()[0]
        if report.prior[i] and len(at):
            used = REFUSED_MODE
        notes = [f"{parties[j]}: {refusals[j]}" for j in at]
        notes += absence_notes(model.task, used, absent[i])
        if completes and not in_time and not report.prior[i]:
            notes.append(NOT_COMPLETED)
        share = round(report.completed[i], 6)
        refusing = tuple(parties[j] for j in at)
        answers.append(RowAnswer(used, tuple(report.parties[i]), refusing, share, tuple(notes)))
    return values, answers


def absence_notes(task: Task, mode: str, absent: Mapping[str, str]) -> list[str]:
    """Tell why no peer, or no party, contributed to a row; `absent` ones may have observed it."""
    if mode not in ("local", "prior", REFUSED_MODE):
        return []
    notes = [f"unreachable: {name} ({reason})" for name, reason in absent.items()]
    if mode == "local":
        return [*notes, NO_PEER]
    if mode == REFUSED_MODE:
        return notes
    return [*notes, f"{NOT_ANSWERED if notes else NOT_OBSERVED}: {task.prior_name}"]


def prior_answer(task: Task, prior: Sequence[float], note: str) -> dict[str, Any]:
    """Answer a row that no party holds."""
    row = RowAnswer("prior", (), (), 0.0, (note,))
    return to_json(task, np.asarray(prior, dtype=float), row, {})


def to_json(
    task: Task, values: NDArray[np.float64], row: RowAnswer, unreachable: Mapping[str, str]
) -> dict[str, Any]:
    """Build the answer of a row for callers."""
    return {
        **_predicted(task, None if row.mode == REFUSED_MODE else values),
        "mode": row.mode,
        "parties": list(row.parties),
        "unreachable": dict(unreachable),
        "refused": list(row.refused),
        "completed": row.completed,
        "notes": list(row.notes),
    }


def _predicted(task: Task, values: NDArray[np.float64] | None) -> dict[str, Any]:
    """Return the prediction of one row, with the probabilities of classes; null without values."""
    if values is None:
        return {"prediction": None}
    if not task.classes:
        return {"prediction": float(values[0])}
    label = task.classes[int(predicted_classes(values[None], None)[0])]
    probabilities = {str(each): float(p) for each, p in zip(task.classes, values, strict=True)}
    return {"prediction": label, "probabilities": probabilities}
