"""How each row is predicted: the mode used, the contributing parties, the completed share.

Training uses it too (`xvfl.model.prediction`). Shapes: n rows, k parties.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]

NO_PEER = "no peer can assist: local prediction"
NO_GAP, FULL_ROW = "no gap: decided alone", "counts as full: decided alone"
"""Notes on assisted rows that need no assistance: all features observed, or enough of them."""
NOT_OBSERVED = "not observed by any party"
NO_TABLE = "nothing given, counts as missing"
"""Note on a party without any row."""
SHOWN_ABSENT = 3
"""Absent columns that a note names."""
REFUSED_MODE = "refused"
"""Mode of a row that has no prediction, because every party that could answer refused it."""
LOGITS, COMPLETED = "logits", "completed"
"""Results of the nets: logits; a party's completed images."""


@dataclass(frozen=True)
class PredictionKind:
    """What decides how the rows of a prediction are reported."""

    mode: str
    """local, assisted, collaborative, or peers: the other parties alone."""
    party: str
    """The predicting party; '' in mode collaborative."""
    parties: tuple[str, ...]
    """The parties whose rows it takes."""
    completes: bool
    """Whether the prediction uses completed features."""
    local_completes: bool
    """The same for rows that no peer assists."""

    @property
    def index(self) -> int:
        """Place of the predicting party among `parties`; 0 in mode collaborative."""
        return self.parties.index(self.party) if self.party else 0


@dataclass(frozen=True)
class Output:
    """One prediction that a bundle offers."""

    mode: str
    party: str
    """The predicting party; '' in mode collaborative."""
    parties: tuple[str, ...]
    """The parties whose rows it takes."""
    graph: str
    """The file of its nets."""
    completion: str
    """The file of the nets that complete features; '' if the model completes none."""
    temperature: float
    local_temperature: float
    """Temperature of rows that no peer assists."""
    completes: bool
    """Whether the prediction uses completed features."""
    local_completes: bool
    """The same for rows that no peer assists."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Output":
        """Build from the JSON form in a manifest."""
        return cls(**{**data, "parties": tuple(data["parties"])})

    @property
    def key(self) -> tuple[str, str]:
        """Mode and party."""
        return self.mode, self.party

    @property
    def kind(self) -> PredictionKind:
        """What decides how rows are reported."""
        modes = (self.completes, self.local_completes)
        return PredictionKind(self.mode, self.party, self.parties, *modes)


@dataclass(frozen=True)
class ModelFlags:
    """Properties of a model that decide how rows are predicted."""

    cross_completion: bool
    """Whether features are completed from the embeddings of other parties."""
    partial_peers: bool
    """Whether peers that observe a row in part assist where no party observes it in full."""
    hides_missing: bool
    """Whether every row counts as full, as with differential privacy."""


@dataclass(frozen=True)
class RowReport:
    """How n rows are predicted."""

    mode: list[str]
    """The requested mode, `local` where no peer could assist, or `prior`."""
    parties: list[list[str]]
    """Contributing parties."""
    completed: list[float]
    """Share of features that were completed: of the predicting party, or of all parties."""
    prior: list[bool]
    """Rows that no contributing party observes; they get the class prior or mean label."""
    alone: list[bool]
    """Rows of an assisted prediction that no peer assists."""
    remarks: list[str]
    """Remark on how an assisted row is predicted; '' for none."""


@dataclass(frozen=True)
class ObservedRows:
    """What the parties observe of n rows."""

    seen: Bools
    """(n, k) parties that observe the row."""
    full: Bools
    """(n, k) parties for which it counts as full."""
    missing: NDArray[np.int64]
    """(n, k) number of missing features."""
    features: NDArray[np.int64]
    """(k,) number of features."""


def absent_columns(names: Sequence[str]) -> str:
    """Write the note on columns used in training that are not given; '' for none."""
    if not names:
        return ""
    more = f" and {len(names) - SHOWN_ABSENT} more" if len(names) > SHOWN_ABSENT else ""
    verb = "counts" if len(names) == 1 else "count"
    return f"not given: {', '.join(names[:SHOWN_ABSENT])}{more}, {verb} as missing"


def report_rows(
    output: Output, flags: ModelFlags, observed: list[Bools], thresholds: list[float]
) -> RowReport:
    """Report how rows are predicted; `observed` (n, raw) for each of the output's parties."""
    if output.mode == "local":
        return _report_local(output, flags, observed[0], thresholds[0])
    features = np.array([each.shape[1] for each in observed])
    missing = np.stack([each.shape[1] - each.sum(1) for each in observed], 1)
    if flags.hides_missing:
        seen = full = np.ones(missing.shape, dtype=bool)
    else:
        seen = missing < features
        shares = np.stack([each.mean(1, dtype=np.float32) for each in observed], 1)
        full = (shares >= np.asarray(thresholds, dtype=np.float32) - np.float32(1e-6)) & seen
    rows = ObservedRows(seen, full, missing, features)
    return describe_rows(output.kind, flags.cross_completion, flags.partial_peers, rows)


def describe_rows(
    kind: PredictionKind, cross_completion: bool, partial_peers: bool, rows: ObservedRows
) -> RowReport:
    """Report how rows are predicted, given what the parties observe of them."""
    seen, full, at = rows.seen, rows.full, kind.index
    alone, contributors = np.zeros(len(seen), dtype=bool), seen
    remarks = np.full(len(seen), "", dtype=object)
    if kind.mode == "assisted":
        contributors = assistants(full, seen, at, partial_peers)
        alone = ~contributors.any(1) & ~full[:, at]
        contributors[:, at] = seen[:, at]
        remarks[full[:, at]] = np.where(rows.missing[full[:, at], at], FULL_ROW, NO_GAP)
    elif kind.mode != "collaborative":
        own = np.arange(seen.shape[1]) == at
        contributors = seen & own if kind.mode == "local" else full & ~own
    prior: Bools = np.asarray(~(contributors & seen).any(1))
    remarks[alone & ~prior] = NO_PEER
    completes = np.where(alone, kind.local_completes, kind.completes) & (kind.mode != "peers")
    filled = ~full & (seen | cross_completion) & (completes & ~prior)[:, None]
    counted = np.arange(seen.shape[1]) == at if kind.party else np.ones(seen.shape[1], dtype=bool)
    completed = (rows.missing * filled)[:, counted].sum(1) / max(rows.features[counted].sum(), 1)
    mode = np.full(len(seen), kind.mode, dtype=object)
    mode[alone], mode[prior] = "local", "prior"
    return RowReport(
        mode.tolist(),
        _marked_names(kind.parties, contributors & ~prior[:, None]),
        completed.tolist(),
        prior.tolist(),
        alone.tolist(),
        remarks.tolist(),
    )


def _report_local(
    output: Output, flags: ModelFlags, observed: Bools, threshold: float
) -> RowReport:
    """Report local predictions: the general case with one party, and most requests."""
    raw = observed.shape[1]
    counts = observed.sum(1).tolist()
    least = np.float32(threshold) - np.float32(1e-6)
    seen = [count > 0 or flags.hides_missing for count in counts]
    completed = [
        (raw - count) / raw
        if own and output.completes and np.float32(count) / np.float32(raw) < least
        else 0.0
        for count, own in zip(counts, seen, strict=True)
    ]
    return RowReport(
        [output.mode if own else "prior" for own in seen],
        [[output.party] if own else [] for own in seen],
        completed,
        [not own for own in seen],
        [False] * len(seen),
        [""] * len(seen),
    )


def assistants(full: Bools, seen: Bools, party: int, partial: bool) -> Bools:
    """Select the peers that assist a party with missing features; none if it is full. (n, k)"""
    sources = full | (seen & ~full.any(1, keepdims=True)) if partial else full
    others = np.arange(full.shape[1]) != party
    selected: Bools = sources & others & ~full[:, [party]]
    return selected


def _marked_names(names: Sequence[str], marked: Bools) -> list[list[str]]:
    """List the names marked in each row."""
    # Few distinct patterns, many rows: number the patterns party by party.
    pattern = np.zeros(len(marked), dtype=np.int64)
    for own in marked.T:
        pattern = np.unique(2 * pattern + own, return_inverse=True)[1]
    _, first = np.unique(pattern, return_index=True)
    lists = [[name for name, own in zip(names, marked[row], strict=True) if own] for row in first]
    return [lists[each] for each in pattern.tolist()]
