"""Fit the model that fills the cells of tables, on rows whose cells are hidden at random.

Shapes: n rows, p scores, K classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, eigsh
from scipy.special import ndtri

from xvfl.data.codecs import CategoryCodec, Codec, HashedCodec
from xvfl.data.encoder import TableEncoder
from xvfl_serve.cell_model import GROUPS, CellModel, Floats, Ints, Target, Trees

Bools = NDArray[np.bool_]
ROWS, MAX_COPIES = 4000, 4
"""Rows that train; fewer are used several times, with other cells hidden."""
MAX_HIDDEN = 0.7
"""Largest share of the cells of a row that are hidden, beside those of other parties."""
KNOTS = 64
MAX_FACTORS = 28
MAX_COVARIANCE = 500
"""Most scores whose covariances are stored."""
EXPLAINED = 0.98
"""Largest share of the variance of a score that the factors explain."""
SHRINKAGE = 20
"""Covariances of fewer common rows count less."""
MAX_CLASSES = 8
"""Classes of a hashed feature; its other values are one more."""
NEAR = 16
"""Scores that the trees of a feature see: the party's own, and half as many of others."""
ITERATIONS, ALL_ITERATIONS, FEWEST_ITERATIONS, CLASS_TREES = 12, 1200, 6, 36
"""Boosting steps of a feature, of all features, the fewest, and trees of all classes."""
LEAF_ROWS = 20
"""Fewest different rows in a leaf."""
CLASS_ROWS = 200
"""Fewest rows of a hashed feature with the cell for trees, by class."""
MIN_ROWS = 60
"""Fewest rows with the cell for trees."""


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
    iterations = min(ITERATIONS, ALL_ITERATIONS // max(len(targets), 1))
    if iterations >= FEWEST_ITERATIONS:
        targets = _add_trees(model, targets, whole, iterations, rng)
    return replace(model, targets=tuple(targets))


def _add_trees(
    model: CellModel,
    targets: list[Target],
    tables: Tables,
    iterations: int,
    rng: np.random.Generator,
) -> list[Target]:
    """Fit trees on copies of the rows with cells hidden at random."""
    rows = _count(tables)
    copies = min(max(ROWS // max(rows, 1), 1), MAX_COPIES)
    at = np.tile(np.arange(rows), copies)
    scores, present = (each[at] for each in model.encode(tables, rows))
    # All scores of a feature are hidden together.
    features = np.unique(np.stack([model.party, model.feature]), axis=1, return_inverse=True)[1]
    hidden = rng.random((len(at), features.max() + 1)) < rng.uniform(0, MAX_HIDDEN, (len(at), 1))
    shown = present & ~hidden[:, features]
    kinds = np.arange(len(at))[:, None] % 2 == 0
    result = []
    for party in tables:
        own = model.party == party
        observed = shown & (kinds | own)
        seen = np.where(observed, scores, np.float32(0))
        factors, _ = model.factor_predictions(seen, observed, np.flatnonzero(own))
        inputs = _Inputs(seen, observed, factors, scores)
        for target in targets:
            if target.party != party:
                continue
            cells = np.flatnonzero(present[:, target.columns[0]])
            least = CLASS_ROWS * len(target.columns) if len(target.codes) else MIN_ROWS
            if len(cells) >= copies * least:
                target = replace(target, near=_nearest(model, target))
                target = _fit_trees(target, inputs, cells, iterations, copies)
            result.append(target)
    return result


def _count(tables: Tables) -> int:
    return len(next(iter(tables.values())).values)


@dataclass(frozen=True)
class _Inputs:
    """What the trees learn from: (n, p) each."""

    scores: Floats
    observed: Bools
    factors: Floats
    true: Floats


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


def _nearest(model: CellModel, target: Target) -> Ints:
    """Return the scores that covary most with a target's."""
    strength = np.abs(model.loadings[target.columns] @ model.loadings.T).max(0)
    own = model.party == target.party
    strength[own & (model.feature == target.feature)] = -1
    order = np.argsort(-strength, kind="stable")
    order = order[strength[order] >= 0]
    return np.sort(np.append(order[own[order]][:NEAR], order[~own[order]][: NEAR // 2]))


def _fit_trees(target: Target, inputs: _Inputs, rows: Ints, iterations: int, copies: int) -> Target:
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    seen = np.where(
        inputs.observed[rows][:, target.near], inputs.scores[rows][:, target.near], np.nan
    )
    factors = inputs.factors[rows][:, target.columns]
    # A column without any number cannot be binned; no tree uses a constant one.
    seen[:, np.isnan(seen).all(0)] = 0
    x = np.concatenate([seen, factors], 1).astype(np.float32)
    options: dict[str, Any] = {
        "learning_rate": 0.25,
        "max_leaf_nodes": 8,
        "max_depth": 5,
        "l2_regularization": 1.0,
        "min_samples_leaf": LEAF_ROWS * copies,
        "early_stopping": False,
        "random_state": 0,
    }
    true = inputs.true[rows][:, target.columns]
    if not target.categorical:
        booster = HistGradientBoostingRegressor(max_iter=iterations, **options)
        booster.fit(x, true[:, 0] - factors[:, 0])
        base = float(booster._baseline_prediction[0, 0])
        return replace(target, trees=copy_trees(booster, np.array([base])))
    count = len(target.columns)
    if count < 2:
        return target
    y = true.argmax(1)
    # A class needs a row: one with nothing observed, if there is no other.
    absent = np.setdiff1d(np.arange(count), y)
    x = np.append(x, np.full((len(absent), x.shape[1]), np.nan, dtype=np.float32), 0)
    y = np.append(y, absent)
    per_class = count if count > 2 else 1
    steps = min(iterations, max(CLASS_TREES // per_class, FEWEST_ITERATIONS))
    booster = HistGradientBoostingClassifier(max_iter=steps, **options).fit(x, y)
    base = booster._baseline_prediction[0]
    baseline = np.array([0.0, base[0]]) if per_class == 1 else np.asarray(base)
    return replace(target, trees=copy_trees(booster, np.zeros(per_class)), baseline=baseline)


def copy_trees(booster: Any, offset: Floats) -> Trees:
    """Copy the trees of a booster; the first tree of each output also has its offset."""
    nodes = [tree.nodes for step in booster._predictors for tree in step]
    ends = np.cumsum([len(each) for each in nodes])
    starts = ends - [len(each) for each in nodes]
    flat, start = np.concatenate(nodes), np.repeat(starts, [len(each) for each in nodes])
    leaf, own = flat["is_leaf"].astype(bool), np.arange(len(flat))
    value = np.where(leaf, flat["value"], 0.0)
    for output, add in enumerate(offset):
        value[starts[output] : ends[output]] += np.where(leaf, add, 0.0)[
            starts[output] : ends[output]
        ]
    return Trees(
        starts.astype(np.int64),
        np.where(leaf, 0, flat["feature_idx"]).astype(np.int64),
        np.where(leaf, 0.0, flat["num_threshold"]).astype(np.float32),
        flat["missing_go_to_left"].astype(bool),
        np.where(leaf, own, flat["left"].astype(np.int64) + start),
        np.where(leaf, own, flat["right"].astype(np.int64) + start),
        value.astype(np.float32),
        int(flat["depth"].max()),
    )
