"""How well a model does on rows it was not trained on, in every mode it has."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from xvfl.data.sources import Source, source_ids
from xvfl.methods import MODES, Mode
from xvfl.model.model import Model
from xvfl.primitives.metrics import all_metrics, majority_rate

Part = tuple[Mapping[str, Source], pd.Series]
"""Some rows: the parties' tables, and the labels by id."""


@dataclass(frozen=True)
class Line:
    """One line of an evaluation: a way to predict and how well it did."""

    mode: str
    party: str
    rows: int
    bytes_per_row: float
    """Embeddings that cross between organisations, at 4 bytes a number."""
    metrics: dict[str, float]


@dataclass(frozen=True)
class Evaluation:
    """How a model did on rows it was not trained on."""

    rows_are: str
    majority: float
    lines: list[Line]

    def to_dict(self) -> dict[str, Any]:
        """Give a JSON form."""
        return asdict(self)


@dataclass
class _Tally:
    """What one way to predict said so far."""

    proba: list[NDArray[np.float64]] = field(default_factory=list)
    y: list[NDArray[np.int64]] = field(default_factory=list)
    moved: list[NDArray[np.int64]] = field(default_factory=list)


def evaluate(model: Model, parts: Iterable[Part], rows_are: str) -> Evaluation:
    """Predict rows in every mode the model has and compare with the labels."""
    tallies: dict[tuple[str, str], _Tally] = {}
    y: list[NDArray[np.int64]] = []
    for sources, labels in parts:
        y.append(_numbers(labels, model))
        for mode, party in _ways(model, sources):
            tally = tallies.setdefault((mode, party or "all"), _Tally())
            _ask(model, sources, labels, mode, party, tally)
    order = {"local": 0, "assisted": 1, "peers": 2, "collaborative": 3}
    lines = [_line(model, *way, tally) for way, tally in tallies.items()]
    lines.sort(key=lambda line: order[line.mode])
    return Evaluation(rows_are, majority_rate(np.concatenate(y)), lines)


def _ways(model: Model, sources: Mapping[str, Source]) -> list[tuple[Mode, str | None]]:
    found: list[tuple[Mode, str | None]] = []
    for mode in (*MODES, "peers"):
        if mode == "collaborative" and mode in model.method.modes:
            found.append((mode, None))
        elif mode in model.method.modes:
            found += [(mode, party) for party in sources if source_ids(sources[party])]
    return found


def _ask(
    model: Model,
    sources: Mapping[str, Source],
    labels: pd.Series,
    mode: Mode,
    party: str | None,
    tally: _Tally,
) -> None:
    said = model.predict(sources, mode, party)
    common = pd.Index(said.ids).get_indexer(labels.index)
    common = common[common >= 0]
    tally.proba.append(said.proba[common])
    tally.y.append(_numbers(labels.loc[[said.ids[i] for i in common]], model))
    tally.moved.append(said.moved)


def _numbers(labels: pd.Series, model: Model) -> NDArray[np.int64]:
    codes = pd.Categorical(labels, categories=model.classes).codes
    return np.asarray(codes, dtype=np.int64)


def _line(model: Model, mode: str, party: str, tally: _Tally) -> Line:
    y = np.concatenate(tally.y)
    moved = float(np.concatenate(tally.moved).mean()) * model.width * 4
    metrics = all_metrics(np.concatenate(tally.proba), y)
    return Line(mode, party, len(y), round(moved, 1), metrics)
