"""Fit the boosted trees that predict what the factor model of cells leaves.

Shapes: n rows, p scores, K classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xvfl_serve.cell_model import CellModel, Floats, Ints, TableCells, Target, Trees

Bools = NDArray[np.bool_]
MIN_COPIED_ROWS, MAX_COPIES = 4000, 4
"""Fewer rows are used several times, with other cells hidden, and how often."""
MAX_HIDDEN = 0.7
"""Largest share of the cells of a row that are hidden, beside those of other parties."""
NEAR = 16
"""Scores that the trees of a feature see: the party's own, and half as many of others."""
ITERATIONS, ALL_ITERATIONS, FEWEST_ITERATIONS, CLASS_TREES = 12, 1200, 6, 36
"""Boosting steps of a feature, of all features, the fewest, and trees of all classes."""
MAX_BINS = 63
"""Bins of an input: with the default of 255 a fit takes half as long again, for the same errors."""
LEAF_ROWS = 20
"""Fewest different rows in a leaf."""
CLASS_ROWS = 200
"""Fewest rows of a hashed feature with the cell for trees, by class."""
MIN_ROWS = 60
"""Fewest rows with the cell for trees."""


@dataclass(frozen=True)
class _Inputs:
    """What the trees learn from: (n, p) each."""

    scores: Floats
    observed: Bools
    factors: Floats
    true: Floats


def add_trees(
    model: CellModel,
    targets: list[Target],
    tables: Mapping[int, TableCells],
    rng: np.random.Generator,
) -> list[Target]:
    """Fit trees on copies of the rows with cells hidden at random; none with many targets."""
    iterations = min(ITERATIONS, ALL_ITERATIONS // max(len(targets), 1))
    if iterations < FEWEST_ITERATIONS:
        return targets
    rows = len(next(iter(tables.values())).values)
    copies = min(max(MIN_COPIED_ROWS // max(rows, 1), 1), MAX_COPIES)
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
        "max_bins": MAX_BINS,
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
