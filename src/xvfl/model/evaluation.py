"""Metrics on labeled rows that were not trained on, one line for each mode and party.

`evaluate` computes the lines. The predictions come from a trained `Model` over tables, in memory
or streamed (`model_predictions`), or from a method over a federation, in one process or across
the wire (`federation_predictions`).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from xvfl.config import TaskKind
from xvfl.data.sources import Source, source_ids
from xvfl.methods import MODES, Method, Mode
from xvfl.methods.base import mode_key
from xvfl.model.model import Model
from xvfl.primitives.metrics import confusion, majority_rate, reliability
from xvfl.primitives.rows import Rows
from xvfl.primitives.task import CLASSIFICATION, Regression, Task
from xvfl.training.predict import logits, mode_party_pairs, predictable_rows
from xvfl.training.protocols import ReachableFederation

ALL = "all"
"""The party of a collaborative line in which all parties took part."""
ORDER = ("local", "assisted", "peers", "collaborative")
"""The modes in the order of the lines."""
MAX_CLASSES = 50
"""Classes up to which a confusion matrix is stored."""
MAX_PAIRS = 1000
"""Rows whose labels and predictions are stored for a plot of regression."""
Chunk = tuple[Mapping[str, Source], pd.Series]
"""Some rows: the parties' tables, and the labels by id."""


@dataclass(frozen=True)
class Predictions:
    """Predictions of labeled rows in one mode, or the reason why there are none."""

    mode: Mode
    party: str
    values: NDArray[np.float64] | None = None
    """(n, C) probabilities, or (n, 1) numbers."""
    y: NDArray[Any] | None = None
    """(n,) class numbers, or numbers."""
    row_bytes: NDArray[np.int64] | None = None
    """(n,) bytes of embeddings that cross between organizations; None if unknown."""
    reason: str = ""
    parties: tuple[str, ...] = ()
    """The parties whose embeddings the predictions use; empty if unknown."""
    index: NDArray[np.int64] | None = None
    """(n,) the place of each row among the rows of the chunk."""


ChunkPredictions = tuple[NDArray[Any], Iterable[Predictions]]
"""The class numbers, or numbers, of some rows, and their predictions in every mode."""


@dataclass(frozen=True)
class Line:
    """Metrics of one mode at one party."""

    mode: str
    party: str
    rows: int
    bytes_per_row: float | None = None
    """Bytes of embeddings that cross between organizations; None if unknown."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Empty if `reason` says why the line could not be computed."""
    reason: str = ""
    parties: tuple[str, ...] = ()
    """The parties that took part in all predictions; empty if unknown."""
    confusion: list[list[int]] = field(default_factory=list)
    """Rows by true and predicted class; empty in regression and above `MAX_CLASSES` classes."""
    reliability: list[tuple[int, float, float]] = field(default_factory=list)
    """Rows, mean confidence and accuracy, by bin of confidence; empty in regression."""


@dataclass(frozen=True)
class SameRows:
    """Metrics of several modes on the same rows: those that one party predicts locally."""

    party: str
    rows: int
    metrics: dict[str, dict[str, float]]
    """By mode: `local` and `assisted` of the party, and `collaborative`."""


@dataclass(frozen=True)
class Evaluation:
    """Metrics in every mode, and the rate of the majority class for comparison."""

    split: str
    majority: float | None
    """None in regression, where R² compares with the mean."""
    lines: list[Line]
    """Each on all rows that its mode can predict; different lines have different rows."""
    same_rows: list[SameRows] = field(default_factory=list)
    """For comparisons of modes: one entry for each party."""
    task: TaskKind = "classification"
    pairs: list[tuple[float, float]] = field(default_factory=list)
    """In regression: label and collaborative prediction of at most `MAX_PAIRS` rows."""
    classes: list[str] = field(default_factory=list)
    """The labels of the confusion matrices, as text; empty in regression."""

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON form."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Evaluation":
        """Restore an evaluation from its JSON form."""
        same_rows = [SameRows(**each) for each in data["same_rows"]]
        lines = [Line(**line) for line in data["lines"]]
        task, pairs = data.get("task", "classification"), data.get("pairs", [])
        classes = data.get("classes", [])
        return cls(data["split"], data["majority"], lines, same_rows, task, pairs, classes)


def evaluate(
    chunks: Iterable[ChunkPredictions], split: str, task: Task = CLASSIFICATION
) -> Evaluation:
    """Compute one line for each mode and party from the predictions of all chunks.

    Parameters
    ----------
    chunks : iterable of ChunkPredictions
        From `model_predictions` or `federation_predictions`.
    split : str
        The split of the rows, "test" or "validation".
    task : Task
        What is predicted; it has the metrics.

    Returns
    -------
    Evaluation

    """
    y: list[NDArray[Any]] = []
    collected: dict[tuple[str, str], list[Predictions]] = {}
    rows = 0
    for targets, predictions in chunks:
        y.append(targets)
        for each in predictions:
            index = None if each.index is None else each.index + rows
            each = replace(each, index=index)
            collected.setdefault((each.mode, each.party), []).append(each)
        rows += len(targets)
    lines = [_line(*key, each, task) for key, each in collected.items()]
    lines.sort(key=lambda line: ORDER.index(line.mode))
    labels = np.concatenate(y)
    same_rows = _same_rows(collected, labels, task)
    if isinstance(task, Regression):
        pairs = _pairs(collected.get(("collaborative", ALL), []))
        return Evaluation(split, None, lines, same_rows, "regression", pairs)
    classes = [str(label) for label in task.classes]
    return Evaluation(split, majority_rate(labels), lines, same_rows, classes=classes)


def model_predictions(model: Model, chunks: Iterable[Chunk]) -> Iterator[ChunkPredictions]:
    """Predict each chunk of tables in every mode, with calibrated probabilities."""
    for chunk in chunks:
        predictions = (_predict(model, chunk, *each) for each in _modes(model, chunk[0]))
        yield model.task.encode(chunk[1].to_numpy()), predictions


def federation_predictions(
    method: Method,
    federation: ReachableFederation,
    rows: Rows,
    task: Task = CLASSIFICATION,
    modes: Collection[str] = ORDER,
    temperatures: Mapping[str, float] | None = None,
) -> Iterator[ChunkPredictions]:
    """Predict the rows of a federation in every mode, with calibrated temperatures if given."""

    def predict() -> Iterator[Predictions]:
        for mode, party in mode_party_pairs(method, federation):
            name = ALL if mode == "collaborative" else federation.names[party]
            index = predictable_rows(rows, mode, party).nonzero().flatten()
            if not len(index) or mode not in modes:
                continue
            out = logits(method, federation, rows.take(index), mode, party)
            key = mode_key(mode, federation.names[party])
            values = task.values(out.double() / (temperatures or {}).get(key, 1.0))
            parties = (name,) if mode == "local" else federation.names
            y = task.restore(rows.y[index])
            yield Predictions(mode, name, values, y, parties=parties, index=index.cpu().numpy())

    yield task.restore(rows.y), predict()


def _modes(model: Model, sources: Mapping[str, Source]) -> Iterator[tuple[Mode, str | None]]:
    for mode in (*MODES, "peers"):
        if mode not in model.method.modes:
            continue
        if mode == "collaborative":
            yield mode, None
        else:
            yield from ((mode, party) for party in sources if source_ids(sources[party]))


def _predict(model: Model, chunk: Chunk, mode: Mode, party: str | None) -> Predictions:
    sources, labels = chunk
    prediction = model.predict(sources, mode, party)
    found = pd.Index(prediction.ids).get_indexer(labels.index)
    places = np.flatnonzero(found >= 0)
    y = model.task.encode(labels.iloc[places].to_numpy())
    row_bytes = prediction.n_embeddings_sent * (model.net.members * model.embedding_dim * 4)
    values = prediction.values[found[places]]
    return Predictions(mode, party or ALL, values, y, row_bytes, index=places)


def _line(mode: str, party: str, chunks: list[Predictions], task: Task) -> Line:
    if reason := next((each.reason for each in chunks if each.reason), ""):
        return Line(mode, party, 0, reason=reason)
    y = np.concatenate([each.y for each in chunks if each.y is not None])
    values = _joined_values(chunks)
    known = [each.row_bytes for each in chunks if each.row_bytes is not None]
    bytes_per_row = round(float(np.concatenate(known).mean()), 1) if known else None
    parties = tuple(name for name in chunks[0].parties if all(name in c.parties for c in chunks))
    line = Line(mode, party, len(y), bytes_per_row, task.metrics(values, y), parties=parties)
    if not task.classes:
        return line
    table = confusion(values, y).tolist() if len(task.classes) <= MAX_CLASSES else []
    return replace(line, confusion=table, reliability=reliability(values, y))


def _same_rows(
    collected: Mapping[tuple[str, str], list[Predictions]], y: NDArray[Any], task: Task
) -> list[SameRows]:
    """Compare modes on the rows that each party predicts locally."""
    result = []
    for mode, party in collected:
        rows = _places(collected[mode, party])
        if mode != "local" or not len(rows):
            continue
        metrics = {}
        for other, name in (("local", party), ("assisted", party), ("collaborative", ALL)):
            chunks = collected.get((other, name), [])
            places = _places(chunks)
            if len(np.intersect1d(places, rows)) < len(rows):
                continue
            chosen = np.isin(places, rows)
            values = _joined_values(chunks)
            metrics[other] = task.metrics(values[chosen], y[places[chosen]])
        result.append(SameRows(party, len(rows), metrics))
    return result


def _joined_values(chunks: Iterable[Predictions]) -> NDArray[np.float64]:
    return np.concatenate([each.values for each in chunks if each.values is not None])


def _pairs(chunks: Iterable[Predictions]) -> list[tuple[float, float]]:
    """Return label and prediction of some rows, evenly spaced."""
    pairs = [
        (float(label), float(value))
        for each in chunks
        if each.y is not None and each.values is not None
        for label, value in zip(each.y, each.values[:, 0], strict=True)
    ]
    return pairs[:: -(-len(pairs) // MAX_PAIRS)] if pairs else []


def _places(chunks: Iterable[Predictions]) -> NDArray[np.int64]:
    """Join the places of the rows of all chunks; none if a chunk has no predictions."""
    places = [each.index for each in chunks]
    known = [each for each in places if each is not None]
    if not known or len(known) < len(places):
        return np.empty(0, dtype=np.int64)
    return np.concatenate(known)
