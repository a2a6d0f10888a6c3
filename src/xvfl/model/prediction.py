"""What a prediction says of each row besides its probabilities.

Shapes: n rows, k parties, C classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from xvfl import maths
from xvfl.data.encoder import Encoded
from xvfl.data.sources import Source, source_ids
from xvfl.methods import Mode
from xvfl.primitives.rows import Rows

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Prediction:
    """What a model says of each row, and how it came to it."""

    ids: list[str]
    classes: list[Any]
    proba: NDArray[np.float64]
    """(n, C) calibrated probabilities."""
    mode: list[str]
    """The mode used: the one asked for, `local` where assistance was not to be had, or `prior`."""
    parties: list[str]
    """Who contributed, joined by +."""
    completed: NDArray[np.float64]
    """(n,) share of the features asked for that were completed: of the asking party, or of all."""
    moved: NDArray[np.int64]
    """(n,) embeddings that crossed between organisations."""
    notes: list[str]
    """What is odd about the row; '' if nothing."""

    def frame(self) -> pd.DataFrame:
        """Give a table: prediction, probabilities, and per row how they came about."""
        labels = np.asarray(self.classes, dtype=object)[self.proba.argmax(1)]
        columns: dict[str, Any] = {"prediction": pd.Series(labels).infer_objects().to_numpy()}
        for i, label in enumerate(self.classes):
            columns[f"proba_{label}"] = self.proba[:, i]
        columns |= {"mode": self.mode, "parties": self.parties}
        columns |= {"completed": self.completed, "notes": self.notes}
        return pd.DataFrame(columns, index=pd.Index(self.ids, name="id"))


@dataclass(frozen=True)
class Asked:
    """How a prediction was asked for: the mode, and whose it is (none: all_parties's)."""

    mode: Mode
    party: str | None


@dataclass(frozen=True)
class ModelInfo:
    """What a model knows that every prediction needs."""

    classes: list[Any]
    prior: list[float]
    completes: bool
    """Whether its method fills gaps at all."""
    cross: bool
    """Whether it fills them from other parties."""


def row_ids(sources: Mapping[str, Source], given: Sequence[str], party: str | None) -> list[str]:
    """List the rows to predict: the asking party's, or all_parties's in order of appearance."""
    if party is not None:
        return source_ids(sources[party])
    return list(dict.fromkeys(each for name in given for each in source_ids(sources[name])))


def unassisted(asked: Asked, rows: Rows, at: int) -> Tensor:
    """Say which rows wanted assistance and found no full peer; they are decided alone. (n,)"""
    alone = ~maths.others(rows.full, at).any(1) & ~rows.full[:, at]
    return alone if asked.mode == "assisted" else alone.zero_()


def explain(
    asked: Asked,
    rows: Rows,
    encoded: Mapping[str, Encoded],
    ids: Sequence[str],
    at: int,
    proba: NDArray[np.float64],
    said: ModelInfo,
) -> Prediction:
    """Say of each row how its answer came about; a row observed nowhere gets the class prior."""
    seen: Bools = rows.seen.cpu().numpy()
    full: Bools = rows.full.cpu().numpy()
    alone: Bools = unassisted(asked, rows, at).cpu().numpy()
    who = _contributors(asked, seen, full, at)
    nowhere = np.asarray(~(who & seen).any(1))
    mode = np.where(nowhere, "prior", np.where(alone, "local", asked.mode))
    by = _joined(list(encoded), who & ~nowhere[:, None])
    filled = ~full & (seen | said.cross) & said.completes
    share = _completed_share(asked, filled, encoded, ids, at)
    notes = _notes(ids, encoded)
    for flag, text in ((alone & ~nowhere, ALONE), (nowhere, NOWHERE)):
        for row in flag.nonzero()[0]:
            notes[row] = _join(notes[row], text)
    proba = np.where(nowhere[:, None], np.asarray(said.prior), proba)
    share = np.where(nowhere, 0.0, share)
    moved = np.where(nowhere, 0, _moved(asked, seen, full, at, said.cross))
    return Prediction(list(ids), list(said.classes), proba, mode.tolist(), by, share, moved, notes)


ALONE = "no full peer: decided alone"
NOWHERE = "observed nowhere: the class prior"


def _joined(names: Sequence[str], who: Bools) -> list[str]:
    """Name those marked in each row, joined by +; rows are many, ways to mark them few."""
    patterns, which = np.unique(who, axis=0, return_inverse=True)
    texts = ["+".join(np.asarray(names)[pattern]) for pattern in patterns]
    return [texts[i] for i in which.reshape(-1).tolist()]


def _contributors(asked: Asked, seen: Bools, full: Bools, at: int) -> Bools:
    if asked.mode == "collaborative":
        return seen
    who = full.copy()
    if asked.mode == "local":
        who[:] = False
    elif asked.mode == "assisted":
        who &= ~full[:, [at]]
    who[:, at] = seen[:, at] & (asked.mode != "peers")
    return who


def _moved(asked: Asked, seen: Bools, full: Bools, at: int, cross: bool) -> NDArray[np.int64]:
    """Count embeddings per row: each E up, and for each completed party a cue down and Ẽ up.

    In `assisted` the completed party keeps its Ẽ.
    """
    fulls, saw = (np.asarray(each.sum(1), dtype=np.int64) for each in (full, seen))
    peers = fulls - full[:, at]
    if asked.mode == "local":
        return np.zeros(len(full), dtype=np.int64)
    if asked.mode == "peers":
        return peers
    if asked.mode == "assisted":
        return np.where(full[:, at] | (peers == 0), 0, peers + 1)
    if not cross:
        return saw
    some = fulls > 0
    givers = np.where(some, fulls, saw)
    completed = full.shape[1] - fulls - (~some & (givers == 1))
    moved: NDArray[np.int64] = givers + 2 * completed
    return moved


def _notes(ids: Sequence[str], encoded: Mapping[str, Encoded]) -> list[str]:
    notes = [""] * len(ids)
    place = {each: row for row, each in enumerate(ids)}
    for name, each in encoded.items():
        for row, note in zip(each.ids, each.notes, strict=True):
            if note and row in place:
                notes[place[row]] = _join(notes[place[row]], f"{name}: {note}")
    return notes


def _join(first: str, second: str) -> str:
    return f"{first}; {second}" if first else second


def _completed_share(
    asked: Asked, filled: Bools, encoded: Mapping[str, Encoded], ids: Sequence[str], at: int
) -> NDArray[np.float64]:
    missing, total = np.zeros(len(ids)), 0
    for i, each in enumerate(encoded.values()):
        if (asked.party is not None and i != at) or asked.mode == "peers":
            continue
        raw = each.observed.shape[1]
        where = pd.Index(each.ids).get_indexer(pd.Index(ids))
        counts = np.append(each.observed.sum(1), 0)
        missing += np.where(filled[:, i], raw - counts[where], 0)
        total += raw
    return missing / max(total, 1)
