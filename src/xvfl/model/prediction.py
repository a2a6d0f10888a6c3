"""Predictions: probabilities or numbers, and for each row how they were obtained.

Shapes: n rows, k parties, C outputs: one for each class, or one number.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from xvfl import maths
from xvfl.data.encoded import Encoded
from xvfl.data.sources import Source, source_ids, source_index
from xvfl.methods import Method, Mode
from xvfl.methods.base import MODES, mode_key
from xvfl.methods.pooling import decision_weights, prediction_views
from xvfl.methods.xvfl import COMPLETED
from xvfl.model.decision_rule import predicted_classes
from xvfl.primitives.rows import Rows
from xvfl.primitives.task import Task
from xvfl_serve.row_report import (
    NO_TABLE,
    NOT_OBSERVED,
    ObservedRows,
    PredictionKind,
    assistants,
    describe_rows,
)

Bools = NDArray[np.bool_]
T = TypeVar("T")

UNKNOWN_ID = "id not in the tables used"


@dataclass(frozen=True)
class Prediction:
    """Probabilities or the number of each row, and how they were obtained."""

    ids: list[str]
    task: Task
    values: NDArray[np.float64]
    """(n, C) calibrated probabilities, or (n, 1) numbers in the units of the label."""
    mode: list[str]
    """Mode used: the requested one, `local` where no peer could assist, or `prior`."""
    parties: list[str]
    """Contributing parties, joined by +."""
    completed: NDArray[np.float64]
    """(n,) share of features that were completed: of the predicting party, or of all parties."""
    n_embeddings_sent: NDArray[np.int64]
    """(n,) embeddings sent between organizations."""
    notes: list[str]
    """Remarks on unusual values; '' if there are none."""
    class_factors: Sequence[float] | None = None
    """Factors of the probabilities that decide the predicted class; None for the largest one."""

    def frame(self) -> pd.DataFrame:
        """Return a table: prediction, probabilities, mode, parties, completed share, notes."""
        columns: dict[str, Any] = {"prediction": self._labels()}
        for i, label in enumerate(self.task.classes):
            columns[f"proba_{label}"] = self.values[:, i]
        columns |= {"mode": self.mode, "parties": self.parties}
        columns |= {"completed": self.completed, "notes": self.notes}
        return pd.DataFrame(columns, index=pd.Index(self.ids, name="id"))

    def _labels(self) -> NDArray[Any]:
        """Return the predicted label of each row. (n,)"""
        if not self.task.classes:
            return self.values[:, 0]
        numbers = predicted_classes(self.values, self.class_factors)
        labels = np.asarray(self.task.classes, dtype=object)[numbers]
        result: NDArray[Any] = pd.Series(labels).infer_objects().to_numpy()
        return result


@dataclass(frozen=True)
class PredictRequest:
    """A requested mode, and the predicting party (None in collaborative mode)."""

    mode: Mode
    party: str | None
    index: int = 0
    """Position of the party among those whose tables are given."""


@dataclass(frozen=True)
class ModelInfo:
    """Properties of a model that a prediction reports."""

    task: Task
    prior: Sequence[float]
    completing_modes: Collection[Mode]
    """Modes whose prediction uses completed features."""
    cross_completion: bool
    """Whether it completes them from the embeddings of other parties."""
    partial_peers: bool
    """Whether peers that observe a row in part assist where no party observes it in full (D8)."""
    class_factors: Sequence[float] | None = None


def completing_modes(method: Method, party: str) -> list[Mode]:
    """List the modes in which predictions of a party use completed features."""
    if "self" not in prediction_views(method):
        return []
    weights = decision_weights(method)
    return [mode for mode in MODES if any(weights.get(mode_key(mode, party), COMPLETED)[1:])]


def used_tables(request: PredictRequest, tables: Mapping[str, T]) -> dict[str, T]:
    """Select the tables that a prediction uses: of the predicting party alone in mode `local`."""
    alone = request.mode == "local"
    return {name: table for name, table in tables.items() if not alone or name == request.party}


def row_ids(sources: Mapping[str, Source], given: Sequence[str], party: str | None) -> list[str]:
    """List the ids to predict: of one party, or of all parties in order of first appearance."""
    if party is not None:
        return source_ids(sources[party])
    first, *others = (source_index(sources[name]) for name in given)
    others = [each for each in others if not each.equals(first)]
    ids: list[str] = (first.append(others).unique() if others else first).tolist()
    return ids


def without_assistance(request: PredictRequest, rows: Rows, partial_peers: bool) -> Tensor:
    """Return the rows of an assisted prediction with missing features that no peer assists. (n,)

    The party predicts them locally.
    """
    peers = maths.assistants(rows.full, rows.seen, request.index, partial_peers)
    alone = ~peers.any(1) & ~rows.full[:, request.index]
    return alone if request.mode == "assisted" else alone.zero_()


def build_prediction(
    request: PredictRequest,
    rows: Rows,
    encoded: Mapping[str, Encoded],
    ids: Sequence[str],
    values: NDArray[np.float64],
    model: ModelInfo,
    without_rows: Collection[str] = (),
) -> Prediction:
    """Combine probabilities or numbers with mode, parties, completed share and notes of each row.

    A row that no contributing party observes gets the class prior, or the mean label.
    """
    counts = _missing_counts(rows, encoded)
    features = np.array([each.observed.shape[1] for each in encoded.values()])
    observed = ObservedRows(rows.seen.cpu().numpy(), rows.full.cpu().numpy(), counts, features)
    completes = [mode in model.completing_modes for mode in (request.mode, "local")]
    kind = PredictionKind(request.mode, request.party or "", tuple(encoded), *completes)
    report = describe_rows(kind, model.cross_completion, model.partial_peers, observed)
    prior = np.array(report.prior, dtype=bool)
    unknown = prior & (rows.handles.cpu().numpy() < 0).all(1)
    sent = _embeddings_sent(request, observed.seen, observed.full, model)
    notes = _encoding_notes(rows, encoded)
    nothing = [f"{name}: {NO_TABLE}" for name in without_rows]
    for row, remark in enumerate(report.remarks):
        if nothing or remark:
            notes[row] = _join(notes[row], *nothing, remark)
    for row in prior.nonzero()[0].tolist():
        note = UNKNOWN_ID if unknown[row] else NOT_OBSERVED
        notes[row] = _join(notes[row], f"{note}: {model.task.prior_name}")
    return Prediction(
        list(ids),
        model.task,
        np.where(prior[:, None], np.asarray(model.prior), values),
        report.mode,
        _joined(report.parties),
        np.array(report.completed, dtype=np.float64),
        np.where(prior, 0, sent),
        notes,
        model.class_factors,
    )


def _missing_counts(rows: Rows, encoded: Mapping[str, Encoded]) -> NDArray[np.int64]:
    """Count the features that each party misses; of a row that it does not hold, all. (n, k)"""
    handles = rows.handles.cpu().numpy()
    counts = []
    for i, each in enumerate(encoded.values()):
        raw = each.observed.shape[1]
        counts.append(np.append(raw - each.observed.sum(1), raw)[handles[:, i]])
    return np.stack(counts, 1)


def _embeddings_sent(
    request: PredictRequest, observed: Bools, full: Bools, model: ModelInfo
) -> NDArray[np.int64]:
    """Count embeddings per row: each E up, and for each completed party a cue down and Ẽ up.

    In `assisted` the completed party keeps its Ẽ.
    """
    n_full, n_observed = (np.asarray(each.sum(1), dtype=np.int64) for each in (full, observed))
    if request.mode == "local":
        return np.zeros(len(full), dtype=np.int64)
    if request.mode == "peers":
        return n_full - full[:, request.index]
    if request.mode == "assisted":
        peers = assistants(full, observed, request.index, model.partial_peers)
        n_assistants = np.asarray(peers.sum(1), dtype=np.int64)
        return np.where(n_assistants == 0, 0, n_assistants + 1)
    if not model.cross_completion:
        return n_observed
    any_full = n_full > 0
    n_sources = np.where(any_full, n_full, n_observed)
    n_completed = full.shape[1] - n_full - (~any_full & (n_sources == 1))
    sent: NDArray[np.int64] = n_sources + 2 * n_completed
    return sent


def _encoding_notes(rows: Rows, encoded: Mapping[str, Encoded]) -> list[str]:
    notes = [""] * len(rows)
    handles = rows.handles.cpu().numpy()
    for i, (name, each) in enumerate(encoded.items()):
        own = np.array([*each.notes, ""], dtype=object)[handles[:, i]]
        for row in np.flatnonzero(own != "").tolist():
            notes[row] = _join(notes[row], f"{name}: {own[row]}")
    return notes


def _joined(lists: Sequence[Sequence[str]]) -> list[str]:
    """Join the names of each list by +; many rows have the same list."""
    keys = list(map(id, lists))
    texts = {key: "+".join(each) for key, each in dict(zip(keys, lists, strict=True)).items()}
    return list(map(texts.__getitem__, keys))


def _join(*notes: str) -> str:
    return "; ".join(filter(None, notes))
