"""Fit the model that fills the cells of tables: its factors, and trees by `cell_trees`.

Shapes: n rows, p scores.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, eigsh
from scipy.special import ndtri

from xvfl.data.codecs import CategoryCodec, Codec, HashedCodec
from xvfl.data.encoder import TableEncoder
from xvfl.model.cell_trees import add_trees
from xvfl_serve.cell_model import GROUPS, CellModel, Floats, Ints, Target, Trees

Bools = NDArray[np.bool_]
ROWS = 4000
"""Most rows that train."""
KNOTS = 64
MAX_FACTORS = 40
MAX_COVARIANCE = 500
"""Most scores whose covariances are stored."""
EXPLAINED = 0.98
"""Largest share of the variance of a score that the factors explain."""
SHRINKAGE = 20
"""Covariances of fewer common rows count less."""
MAX_CLASSES = 8
"""Classes of a hashed feature; its other values are one more."""


@dataclass(frozen=True)
class Cells:
    """The encoded rows of a party, in numpy."""

    values: NDArray[np.float32]
    codes: Ints
    observed: Bools

    def take(self, rows: Ints) -> "Cells":
        """Select rows."""
        return Cells(self.values[rows], self.codes[rows], self.observed[rows])


Tables = Mapping[int, Cells]
"""Rows of the parties with a table, by the number of the party; a row has one place in all."""


def fit_cells(encoders: Mapping[int, TableEncoder], tables: Tables, seed: int) -> CellModel:
    """Fit the factor model and the trees of all parties' features, without `calibrate_cells`."""
    rng = np.random.default_rng(seed)
    sampled = rng.permutation(_count(tables))[:ROWS]
    whole = {party: table.take(sampled) for party, table in tables.items()}
    model = _fit_factors(encoders, whole)
    targets = [
        _empty_target(model, party, feature, codec, whole[party])
        for party, encoder in encoders.items()
        for feature, codec in enumerate(encoder.codecs)
    ]
    return replace(model, targets=tuple(add_trees(model, targets, whole, rng)))


def _count(tables: Tables) -> int:
    return len(next(iter(tables.values())).values)


def _fit_factors(encoders: Mapping[int, TableEncoder], tables: Tables) -> CellModel:
    columns = [
        (party, feature, *column)
        for party, encoder in encoders.items()
        for feature, (codec, start) in enumerate(zip(encoder.codecs, _starts(encoder), strict=True))
        for column in _score_columns(encoder, feature, codec, start, tables[party])
    ]
    numbers = np.array([each[:4] for each in columns], dtype=np.int64)
    party, feature, place, code = numbers.T
    model = CellModel(
        party,
        feature,
        place,
        code,
        tuple(each[4] for each in columns),
        tuple(each[5] for each in columns),
        np.zeros((len(columns), 1)),
        np.ones(len(columns)),
    )
    scores, observed = model.encode(tables, _count(tables))
    total, variances, vectors = _principal_components(scores, observed)
    kept = np.argsort(-variances, kind="stable")[:MAX_FACTORS]
    loadings = vectors[:, kept] * np.sqrt(np.maximum(variances[kept], 0))
    total = np.maximum(total, 1e-3)
    explained = (loadings**2).sum(1)
    noise = np.maximum(total - explained, (1 - EXPLAINED) * total)
    return replace(model, loadings=loadings, noise=noise)


def _principal_components(scores: Floats, observed: Bools) -> tuple[Floats, Floats, Floats]:
    """Return the variance of each score, and variances and directions of components."""
    start = np.ones(scores.shape[1])
    if len(start) > MAX_COVARIANCE:
        total, product = _implicit_covariance(scores, observed)
        count = min(MAX_FACTORS, *(each - 1 for each in scores.shape))
        return total, *eigsh(product, count, v0=start)
    common = observed.T.astype(np.float32) @ observed.astype(np.float32)
    covariance = (scores.T @ scores / (common + SHRINKAGE)).astype(np.float64)
    if len(start) <= 4 * MAX_FACTORS:
        variances, vectors = np.linalg.eigh(covariance)
    else:
        variances, vectors = eigsh(covariance, MAX_FACTORS, v0=start)
    return np.diag(covariance), variances, vectors


def _implicit_covariance(scores: Floats, observed: Bools) -> tuple[Floats, LinearOperator]:
    """Return the variances, and products with the covariances, without a (p, p) matrix.

    As if cells were observed independently of each other: n q q' rows have both of two scores, of
    which shares q and q' are observed.
    """
    count = observed.sum(0) + SHRINKAGE
    total = (scores.astype(np.float64) ** 2).sum(0) / count
    scaled = (scores * (np.sqrt(len(scores) + SHRINKAGE) / count)).astype(np.float32)
    rest = total - (scaled.astype(np.float64) ** 2).sum(0)

    def product(vector: Floats) -> Floats:
        vector = vector.ravel()
        result: Floats = scaled.T @ (scaled @ vector.astype(np.float32)) + rest * vector
        return result

    shape = len(total), len(total)
    return total, LinearOperator(shape, matvec=product, dtype=np.float64)


def _starts(encoder: TableEncoder) -> Ints:
    """Return the first encoded column of each feature."""
    return np.cumsum([0, *(each.feature.width for each in encoder.codecs)])[:-1]


def _score_columns(
    encoder: TableEncoder, feature: int, codec: Codec, start: int, table: Cells
) -> list[tuple[int, int, Floats, Floats]]:
    """Return place, code, knots and scores of each score of a feature."""
    present = table.observed[:, feature]
    if isinstance(codec, HashedCodec):
        place = feature - (len(encoder.codecs) - len(encoder.layout.hashed))
        found = table.codes[present, place]
        codes, counts = np.unique(found[np.isin(found, codec.decodable[0])], return_counts=True)
        frequent = codes[np.argsort(-counts, kind="stable")][:MAX_CLASSES]
        if not len(frequent):
            frequent = codec.decodable[0][:1]
        shares = [(found == code).mean() if len(found) else 0.0 for code in frequent]
        flags = [*zip(frequent.tolist(), shares, strict=True), (-2, 1 - sum(shares))]
        return [(place, code, *_flag_scores(share)) for code, share in flags]
    columns = []
    for width in range(codec.feature.width):
        values = table.values[present, start + width].astype(np.float64)
        if not isinstance(codec, CategoryCodec) and not width:
            knots = _rank_scores(values)
        else:
            knots = _flag_scores(values.mean() if len(values) else 0.5, values.std())
        columns.append((start + width, -1, *knots))
    return columns


def _flag_scores(mean: float, deviation: float | None = None) -> tuple[Floats, Floats]:
    deviation = (mean * (1 - mean)) ** 0.5 if deviation is None else deviation
    # Rare values have no scores far from 0.
    ends = (np.array([-1.0, 1.0]) - mean) / max(float(np.nan_to_num(deviation)), 0.05)
    return np.array([-1.0, 1.0]), ends


def _rank_scores(values: Floats) -> tuple[Floats, Floats]:
    """Map values to the quantiles of the normal distribution at their mean ranks."""
    distinct, counts = np.unique(values, return_counts=True)
    if len(distinct) < 2:
        return np.array([0.0, 1.0]), np.zeros(2)
    ranks = (np.cumsum(counts) - counts / 2) / len(values)
    if len(distinct) > KNOTS:
        wanted = np.linspace(ranks[0], ranks[-1], KNOTS)
        kept = np.unique(np.searchsorted(ranks, wanted).clip(max=len(ranks) - 1))
        kept = np.unique(np.append(kept, [0, len(ranks) - 1]))
        distinct, ranks = distinct[kept], ranks[kept]
    return distinct, ndtri(ranks)


def _empty_target(model: CellModel, party: int, feature: int, codec: Codec, table: Cells) -> Target:
    """Return a target without trees."""
    present = table.observed[:, feature]
    columns = np.flatnonzero((model.party == party) & (model.feature == feature))
    none: Ints = np.zeros(0, dtype=np.int64)
    empty: Floats = np.zeros(0)
    shares = empty
    scores, filled, baseline = empty, empty, np.zeros(len(columns))
    codes = words = none
    if isinstance(codec, HashedCodec):
        codes = model.code[columns[:-1]]
        known, places = codec.decodable
        options = codec.options_of(codes)
        words = places[options]
        found = codec.options_of(table.codes[present, model.place[columns[0]]])
        shares = np.bincount(found[found >= 0], minlength=len(known)) + 1.0
        shares[options] = 0
        shares /= max(shares.sum(), 1.0)
    elif not isinstance(codec, CategoryCodec):
        columns, baseline = columns[:1], np.zeros(1)
        scores, knots = model.scores[columns[0]], model.knots[columns[0]]
        if not present.any():
            knots = np.full(2, 0.5)
        elif not scores.any():
            knots = np.full(2, float(table.values[present.argmax(), model.place[columns[0]]]))
        filled = np.tile(knots, GROUPS)
    if not len(scores):
        flags = [(model.scores[at], model.knots[at]) for at in columns]
        means = np.array([np.interp(0.0, *each) for each in flags])
        baseline = np.log(np.maximum(means, 1e-4))
    trees = Trees(none, none, empty.astype(np.float32), none.astype(bool), none, none,
                  empty.astype(np.float32), 0)  # fmt: skip
    return Target(
        party, feature, columns, none, trees, baseline, scores, filled, codes, words, shares
    )
