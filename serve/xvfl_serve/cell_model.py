"""Estimate the missing cells of tables from the cells of the same row that are observed.

Cells are compared as *scores*: a number is mapped to the normal distribution by its rank, a
category is one standardized flag for each of its values. A factor model of the scores of all
parties predicts each score from the others that are observed; boosted trees predict what it leaves.
The cell itself is never an input, so that observed cells can be predicted like missing ones.

Shapes: n rows, p scores, r factors, T trees, K classes.
"""

import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from xvfl_serve.errors import BundleError

Floats = NDArray[Any]
"""Of float32 or float64."""
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Arrays = Mapping[str, NDArray[Any]]
GROUPS = 6
"""Groups of cells, by the share of the variance of their score that is not predicted."""
MAX_FACTORS, MAX_PRODUCTS, MAX_DEPTH = 64, 2**25, 64
"""Limits of a model that is read: factors, products of loadings in memory, depth of trees."""
DECIMALS = 3
"""Digits of the scores that the factor model predicts."""
GROUP_ENDS = (0.06, 0.2, 0.45, 0.7, 0.9)
CHUNK = 4_000_000
"""Numbers of a temporary array; bounds the rows that are predicted at once."""


class TableCells(Protocol):
    """The encoded rows of a party."""

    @property
    def values(self) -> Floats:
        """(n, dense) numbers in [0, 1] and one-hot groups."""

    @property
    def codes(self) -> Ints:
        """(n, hashed) codes of hashed features."""

    @property
    def observed(self) -> Bools:
        """(n, raw) which raw features are observed."""


@dataclass(frozen=True)
class Trees:
    """Boosted trees of one feature; of K > 2 classes, tree t is of class t mod K."""

    roots: Ints
    """(T,) first node of each tree."""
    feature: Ints
    """Input of each node; 0 at leaves."""
    threshold: NDArray[np.float32]
    missing_left: Bools
    left: Ints
    """Next node if the input is at most the threshold; leaves lead to themselves."""
    right: Ints
    value: NDArray[np.float32]
    """Of each leaf."""
    depth: int

    def predict(self, inputs: NDArray[np.float32], outputs: int) -> Floats:
        """Sum the values of the trees. (n, outputs); inputs (n, …) are NaN where missing"""
        result = np.zeros((len(inputs), outputs))
        size = max(CHUNK // max(len(self.roots), 1), 1)
        for start in range(0, len(inputs) if len(self.roots) else 0, size):
            part = inputs[start : start + size]
            rows = np.arange(len(part))[:, None]
            at = np.broadcast_to(self.roots, (len(part), len(self.roots)))
            for _ in range(self.depth):
                x = part[rows, self.feature[at]]
                left = np.where(np.isnan(x), self.missing_left[at], x <= self.threshold[at])
                at = np.where(left, self.left[at], self.right[at])
            leaves = self.value[at].astype(np.float64)
            result[start : start + size] = leaves.reshape(len(part), -1, outputs).sum(1)
        return result


@dataclass(frozen=True)
class Target:
    """How the cells of one raw feature are predicted."""

    party: int
    feature: int
    columns: Ints
    """Its own scores: one of a number, one for each class of a category."""
    near: Ints
    """The scores that its trees see, besides the factor model's predictions of its own."""
    trees: Trees
    baseline: Floats
    """(1,), or (K,) added to the trees, or, without trees, to the factor model's predictions."""
    scores: Floats
    """Of a number: the knots of the map from predicted scores to encoded values…"""
    filled: Floats
    """(GROUPS · knots,) …and the encoded values there, by group. Of a category, by group: the
    factor of the log-probabilities and a bias of each class (GROUPS · (1 + K),), or nothing."""
    codes: Ints
    """Of a hashed feature: the code of each class; the class after them has all other values."""
    words: Ints
    """The places of these codes in the vocabulary."""
    shares: Floats
    """Of a hashed feature: each option's share of the other values; 0 for those of `codes`."""

    @property
    def categorical(self) -> bool:
        """Whether it has classes."""
        return not len(self.scores)

    def predict(self, scores: Floats, observed: Bools, factors: Floats) -> Floats:
        """Predict the score of a number (n, 1), or log-probabilities of classes (n, K).

        `scores` and `observed` are (n, p); `factors` (n, p) are the factor model's predictions.
        """
        seen = np.where(observed[:, self.near], scores[:, self.near], np.nan)
        inputs = np.concatenate([seen, factors[:, self.columns]], 1).astype(np.float32)
        binary = self.categorical and len(self.baseline) == 2
        found = self.trees.predict(inputs, 1 if binary else len(self.baseline))
        if not self.categorical:
            return found + factors[:, self.columns]
        raw = np.concatenate([np.zeros_like(found), found], 1) if binary else found
        if not len(self.trees.roots):
            raw = factors[:, self.columns]
        return log_softmax(raw + self.baseline)

    def calibrate(self, scores: Floats, groups: Ints) -> Floats:
        """Return calibrated log-probabilities of classes (n, K); scores of numbers as they are."""
        if not self.categorical or not len(self.filled):
            return scores
        own = self.filled.reshape(GROUPS, -1)[groups]
        return log_softmax(scores * own[:, :1] + own[:, 1:])

    def fill(self, cells: "Predicted") -> Floats:
        """Return the encoded values of predicted cells of a number. (n,)"""
        result = np.zeros(len(cells.groups))
        for group, filled in enumerate(self.filled.reshape(GROUPS, -1)):
            own = cells.groups == group
            result[own] = np.interp(cells.scores[own, 0], self.scores, filled)
        return result


def log_softmax(logits: Floats) -> Floats:
    """Return log-probabilities. (n, K)"""
    logits = logits - logits.max(1, keepdims=True)
    result: Floats = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    return result


@dataclass(frozen=True)
class Predicted:
    """Predicted cells of one feature."""

    scores: Floats
    """(n, 1) scores of a number, or (n, K) log-probabilities of classes."""
    groups: Ints
    """(n,)"""

    def take(self, rows: Ints) -> "Predicted":
        """Select rows."""
        return Predicted(self.scores[rows], self.groups[rows])

    @classmethod
    def join(cls, parts: Sequence["Predicted"]) -> "Predicted":
        """Put rows after each other."""
        scores, groups = ([getattr(each, name) for each in parts] for name in ("scores", "groups"))
        return cls(np.concatenate(scores), np.concatenate(groups))


@dataclass(frozen=True)
class CellModel:
    """Predicts the cells of all parties' tables; see the module's description."""

    party: Ints
    """(p,) the party of each score, as a number."""
    feature: Ints
    """(p,) its raw feature."""
    place: Ints
    """(p,) its encoded column, or its column of codes."""
    code: Ints
    """(p,) the code that it flags; −1 for encoded columns, −2 for all codes without a flag."""
    knots: tuple[Floats, ...]
    """Encoded values of each score…"""
    scores: tuple[Floats, ...]
    """…and the scores there."""
    loadings: Floats
    """(p, r) of the factor model."""
    noise: Floats
    """(p,) variance of each score that the factors do not explain."""
    targets: tuple[Target, ...] = field(default=())

    def encode(self, tables: Mapping[int, TableCells], rows: int) -> tuple[Floats, Bools]:
        """Return scores (n, p), 0 where missing, and which are observed (n, p)."""
        scores = np.zeros((rows, len(self.party)), dtype=np.float32)
        observed = np.zeros(scores.shape, dtype=bool)
        for at, (party, feature, place, code) in enumerate(
            zip(self.party, self.feature, self.place, self.code, strict=True)
        ):
            table = tables.get(int(party))
            if table is None:
                continue
            if code == -1:
                values = table.values[:, place]
            elif code >= 0:
                values = (table.codes[:, place] == code).astype(np.float32)
            else:
                listed = self.code[(self.party == party) & (self.feature == feature)]
                other = ~np.isin(table.codes[:, place], listed[listed >= 0])
                values = other.astype(np.float32)
            observed[:, at] = table.observed[:, feature]
            scores[:, at] = np.interp(values, self.knots[at], self.scores[at])
        return np.where(observed, scores, np.float32(0)), observed

    def factor_predictions(
        self, scores: Floats, observed: Bools, columns: Ints
    ) -> tuple[Floats, Floats]:
        """Predict some scores from the other observed ones. (n, p), 0 in other columns

        Returns the conditional mean of a normal distribution with covariance W Wᵀ + D, where W are
        the loadings and D the noise, and the remaining share of the variance.
        """
        W, D = self.loadings.astype(np.float32), self.noise.astype(np.float32)
        p, r = W.shape
        outer = (W[:, :, None] * W[:, None, :] / D[:, None, None]).reshape(p, r * r)
        result, remaining = np.zeros((len(scores), p)), np.zeros((len(scores), p))
        own, noise = np.ascontiguousarray(W[columns].T), D[columns]
        size = max(CHUNK // max(r * max(p, r), 1), 1)
        for start in range(0, len(scores), size):
            part = slice(start, start + size)
            x, seen = scores[part][:, columns], observed[part][:, columns]
            precision = (observed[part].astype(np.float32) @ outer).reshape(-1, r, r)
            projected = np.linalg.solve(precision + np.eye(r, dtype=np.float32), own[None])
            weighted = (scores[part] * observed[part] / D) @ W
            predicted = (weighted[:, None, :] @ projected)[:, 0]
            leverage = (projected * own).sum(1) / noise
            # An observed score is predicted from the others: its own share is removed.
            left = np.maximum(1 - leverage, 1e-6)
            # Trees must not find an observed score in the rounding errors of its prediction.
            found = np.where(seen, x - (x - predicted) / left, predicted).round(DECIMALS)
            result[part, columns] = found
            variance = noise * np.where(seen, 1 / left, 1 + leverage)
            remaining[part, columns] = variance / (noise + (own**2).sum(0))
        return result, remaining

    def of_party(self, party: int) -> dict[int, Target]:
        """Return the targets of a party, by feature."""
        return {each.feature: each for each in self.targets if each.party == party}

    def predict(
        self, tables: Mapping[int, TableCells], rows: int, party: int
    ) -> dict[int, Predicted]:
        """Predict every cell of a party, by feature."""
        scores, observed = self.encode(tables, rows)
        own = np.flatnonzero(self.party == party)
        factors, remaining = self.factor_predictions(scores, observed, own)
        found = {}
        for feature, target in self.of_party(party).items():
            groups = np.digitize(remaining[:, target.columns].mean(1), GROUP_ENDS)
            predicted = target.predict(scores, observed, factors)
            found[feature] = Predicted(target.calibrate(predicted, groups), groups)
        return found

    def complete(
        self, tables: Mapping[int, TableCells], rows: int, party: int
    ) -> tuple[Floats, Ints]:
        """Return encoded columns (n, dense), and vocabulary places of hashed features, filled."""
        values = tables[party].values.astype(np.float64)
        words = np.zeros(tables[party].codes.shape, dtype=np.int64)
        found = self.predict(tables, rows, party)
        for feature, target in self.of_party(party).items():
            each, place = found[feature], int(self.place[target.columns[0]])
            if len(target.codes):
                words[:, place] = target.words[each.scores[:, : len(target.words)].argmax(1)]
            elif target.categorical:
                values[:, place : place + each.scores.shape[1]] = np.exp(each.scores)
            else:
                values[:, place] = target.fill(each)
        return values, words

    def select(self, parties: Sequence[int]) -> "CellModel":
        """Return the model of some parties; it knows nothing of the scores of others."""
        kept = np.flatnonzero(np.isin(self.party, parties))
        where = np.full(len(self.party) + 1, -1)
        where[kept] = np.arange(len(kept))
        number = {each: at for at, each in enumerate(parties)}
        targets = [
            _select_inputs(each, where, number[each.party])
            for each in self.targets
            if each.party in number
        ]
        return CellModel(
            np.array([number[int(each)] for each in self.party[kept]], dtype=np.int64),
            self.feature[kept],
            self.place[kept],
            self.code[kept],
            tuple(self.knots[at] for at in kept),
            tuple(self.scores[at] for at in kept),
            self.loadings[kept],
            self.noise[kept],
            tuple(targets),
        )

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return all contents as arrays, by name."""
        plain = ("party", "feature", "place", "code", "loadings", "noise")
        result = {name: getattr(self, name) for name in plain}
        result |= _join("knots", self.knots) | _join("scores", self.scores)
        for name in _TARGET_ARRAYS:
            result |= _join(f"target.{name}", [getattr(each, name) for each in self.targets])
        for name in _TREE_ARRAYS:
            result |= _join(f"tree.{name}", [getattr(each.trees, name) for each in self.targets])
        numbers = [(each.party, each.feature, each.trees.depth) for each in self.targets]
        result["targets"] = np.array(numbers, dtype=np.int64).reshape(-1, 3)
        return result

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> "CellModel":
        """Build the model from the arrays of `to_arrays`."""
        own = {name: _split(f"target.{name}", arrays) for name in _TARGET_ARRAYS}
        trees = {name: _split(f"tree.{name}", arrays) for name in _TREE_ARRAYS}
        targets = [
            Target(
                int(party),
                int(feature),
                trees=Trees(**{name: each[at] for name, each in trees.items()}, depth=int(depth)),
                **{name: each[at] for name, each in own.items()},
            )
            for at, (party, feature, depth) in enumerate(arrays["targets"])
        ]
        return cls(
            arrays["party"],
            arrays["feature"],
            arrays["place"],
            arrays["code"],
            tuple(_split("knots", arrays)),
            tuple(_split("scores", arrays)),
            arrays["loadings"],
            arrays["noise"],
            tuple(targets),
        )


_TARGET_ARRAYS = [
    each.name for each in fields(Target) if each.name not in ("party", "feature", "trees")
]
_TREE_ARRAYS = [each.name for each in fields(Trees) if each.name != "depth"]


def write_arrays(arrays: Arrays) -> bytes:
    """Return the bytes of an .npz file; equal arrays give equal bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in sorted(arrays.items()):
            part = io.BytesIO()
            np.save(part, array, allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0)), part.getvalue())
    return buffer.getvalue()


def read_cells(data: bytes) -> CellModel:
    """Read a model from the bytes of an .npz file; reject compressed arrays and wrong values."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = archive.infolist()
    stored = all(each.compress_type == zipfile.ZIP_STORED for each in entries)
    if not stored or sum(each.file_size for each in entries) > len(data):
        raise BundleError("model of cells: expected arrays that are not compressed")
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        model = CellModel.from_arrays(dict(arrays))
    check_cells(model)
    return model


def check_cells(model: CellModel) -> None:
    """Reject a model that would read other places than its own, loop, or take much memory."""
    count = len(model.party)
    arrays: list[Floats] = [model.feature, model.place, model.code, model.noise, model.loadings]
    same = all(len(each) == count for each in arrays)
    same &= len(model.knots) == len(model.scores) == count
    _require(same and model.loadings.ndim == 2, "scores")
    factors = model.loadings.shape[1]
    _require(factors <= MAX_FACTORS and count * factors**2 <= MAX_PRODUCTS, "factors")
    _require(bool(np.isfinite(model.loadings).all() and (model.noise > 0).all()), "factors")
    for knots, scores in zip(model.knots, model.scores, strict=True):
        _require(0 < len(knots) == len(scores), "knots")
    for target in model.targets:
        _check_target(target, count)


def _check_target(target: Target, count: int) -> None:
    trees, outputs = target.trees, len(target.baseline)
    nodes = len(trees.value)
    arrays: list[Floats] = [trees.feature, trees.threshold, trees.missing_left]
    arrays += [trees.left, trees.right]
    _require({len(each) for each in arrays} == {nodes}, "trees")
    _require(0 <= trees.depth <= MAX_DEPTH, "depth of trees")
    inputs = len(target.near) + len(target.columns)
    indices = [(trees.roots, nodes), (trees.left, nodes), (trees.right, nodes)]
    indices += [(trees.feature, inputs), (target.near, count), (target.columns, count)]
    for places, most in indices:
        integers = places.dtype.kind == "i" and places.ndim == 1
        _require(integers and bool(((places >= 0) & (places < most)).all()), "places")
    _require(len(target.columns) > 0 and outputs > 0, "columns")
    binary = target.categorical and outputs == 2
    _require(len(trees.roots) % (1 if binary else outputs) == 0, "trees")
    sizes = (0, GROUPS * (1 + outputs)) if target.categorical else (GROUPS * len(target.scores),)
    _require(len(target.filled) in sizes, "map")


def _require(valid: bool, what: str) -> None:
    if not valid:
        raise BundleError(f"model of cells: its {what} are invalid; export the bundle again")


def _select_inputs(target: Target, where: Ints, party: int) -> Target:
    """Renumber the scores of a target; inputs of other parties become missing ones.

    A node that tests such an input leads to its child for missing values in any case.
    """
    given = where[target.near]
    gone = np.append(given < 0, np.zeros(len(target.columns), dtype=bool))
    trees, lost = target.trees, gone[target.trees.feature]
    follow = np.where(trees.missing_left, trees.left, trees.right)
    left, right = (np.where(lost, follow, each) for each in (trees.left, trees.right))
    places = np.cumsum(~gone) - 1
    inputs = np.where(lost, 0, places[trees.feature])
    threshold = np.where(lost, np.float32(0), trees.threshold)
    trees = Trees(
        trees.roots, inputs, threshold, trees.missing_left, left, right, trees.value, trees.depth
    )
    values = {name: getattr(target, name) for name in _TARGET_ARRAYS}
    values |= {"near": given[given >= 0], "columns": where[target.columns]}
    return Target(party, target.feature, trees=trees, **values)


def _join(name: str, parts: Sequence[NDArray[Any]]) -> dict[str, NDArray[Any]]:
    ends = np.cumsum([len(each) for each in parts], dtype=np.int64)
    return {name: np.concatenate(parts) if parts else np.zeros(0), f"{name}.ends": ends}


def _split(name: str, arrays: Arrays) -> list[Any]:
    return (
        np.split(arrays[name], arrays[f"{name}.ends"][:-1]) if len(arrays[f"{name}.ends"]) else []
    )
