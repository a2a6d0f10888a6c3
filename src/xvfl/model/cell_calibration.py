"""Fit the values and distributions of filled cells on rows with cells hidden at random.

Shapes: N rows, n copies of them.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from xvfl.data.codecs import CategoryCodec, HashedCodec, NumberCodec
from xvfl.data.encoder import TableEncoder
from xvfl.model.cell_distributions import (
    BINS,
    LEVELS,
    CellDistributions,
    fit_quantiles,
    fit_scores,
)
from xvfl.model.cell_fit import Cells, Tables, fit_fills
from xvfl.model.filled_cells import option_scores
from xvfl_serve.cell_model import GROUPS, CellModel, Predicted, Target

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Encoders = Mapping[int, TableEncoder]
ROWS, MAX_REPEATS = 2000, 5
"""Number of rows whose cells are hidden; fewer rows are used several times."""
MAX_HASHED_CELLS = 500
"""Most hidden cells of a hashed column; each is compared with the whole vocabulary."""
HIDDEN = ("everywhere", "alone", "absent")
"""Hide some cells of all parties, also all those of others, or all of the party's own."""
HIDDEN_SHARE = 2 / 3
"""Share of the copies of a cell that are hidden."""
Key = tuple[int, int]


def calibrate_cells(
    model: CellModel, encoders: Encoders, tables: Tables, seed: int
) -> tuple[CellModel, dict[int, CellDistributions]]:
    """Fit how cells are filled, and the distributions of filled cells by party."""
    rng = np.random.default_rng(seed)
    rows = len(next(iter(tables.values())).values)
    chosen = rng.permutation(rows)[:ROWS]
    repeats = min(max(ROWS // max(len(chosen), 1), 1), MAX_REPEATS)
    at = np.tile(chosen, repeats * len(HIDDEN))
    kinds = np.repeat(HIDDEN, repeats * len(chosen))
    whole = {party: table.take(at) for party, table in tables.items()}
    predicted: dict[Key, Predicted] = {}
    cells: dict[Key, Ints] = {}
    for party, table in whole.items():
        masked = _hide(whole, party, kinds, rng)
        hidden = table.observed & ~masked[party].observed
        for feature, found in model.predict(masked, len(at), party).items():
            cells[party, feature] = np.flatnonzero(hidden[:, feature])
            predicted[party, feature] = found.take(cells[party, feature])
    true = {
        (each.party, each.feature): _true(
            model, each, whole[each.party].take(cells[each.party, each.feature])
        )
        for each in model.targets
    }
    model = fit_fills(model, encoders, predicted, true, HIDDEN_SHARE * repeats * len(HIDDEN))
    distributions = {
        party: _fit_party(model, encoder, party, whole[party], predicted, cells)
        for party, encoder in encoders.items()
    }
    return model, distributions


def _hide(
    tables: Tables, party: int, kinds: NDArray[np.str_], rng: np.random.Generator
) -> dict[int, Cells]:
    """Hide cells of each party; `kinds` (n,) tells which."""
    result = {}
    for other, table in tables.items():
        shape = table.observed.shape
        hidden = rng.random(shape) < rng.random((shape[0], 1))
        hidden |= (kinds == ("absent" if other == party else "alone"))[:, None]
        result[other] = replace(table, observed=table.observed & ~hidden)
    return result


def _true(model: CellModel, target: Target, table: Cells) -> Floats:
    """Return the encoded values of a number; not used for categories. (n,)"""
    if target.categorical:
        return np.zeros(0)
    return table.values[:, model.place[target.columns[0]]].astype(np.float64)


def _fit_party(
    model: CellModel,
    encoder: TableEncoder,
    party: int,
    table: Cells,
    predicted: Mapping[Key, Predicted],
    cells: Mapping[Key, Ints],
) -> CellDistributions:
    targets, numeric, categorical = model.of_party(party), [], []
    width = max((len(c.values) for c in encoder.codecs if isinstance(c, CategoryCodec)), default=0)
    for feature, codec in enumerate(encoder.codecs):
        key, target = (party, feature), targets[feature]
        found, rows = predicted[key], table.take(cells[key])
        place = int(model.place[target.columns[0]])
        if isinstance(codec, HashedCodec):
            count = len(found.groups)
            some = np.arange(count)[:: max(count // MAX_HASHED_CELLS, 1)]
            option = codec.options_of(rows.codes[some, place])
            some, option = some[option >= 0], option[option >= 0]
            scores = option_scores(codec, target, found.scores[some])
            categorical.append(fit_scores(scores, option, found.groups[some], width))
        elif isinstance(codec, CategoryCodec):
            option = rows.values[:, place : place + len(codec.values)].argmax(1)
            categorical.append(fit_scores(found.scores, option, found.groups, width))
        else:
            near = target.fill(found)
            rounded = codec.rounded(near) if isinstance(codec, NumberCodec) else near
            numeric.append(fit_quantiles(near, rounded, _true(model, target, rows), found.groups))
    edges, quantiles, relative = zip(*numeric, strict=True) if numeric else ((), (), ())
    factors, biases = zip(*categorical, strict=True) if categorical else ((), ())
    return CellDistributions(
        np.reshape(edges, (-1, GROUPS, BINS - 1)),
        np.reshape(quantiles, (-1, GROUPS, BINS, len(LEVELS))),
        np.reshape(relative, (-1, GROUPS)),
        np.reshape(factors, (-1, GROUPS)),
        np.reshape(biases, (len(biases), GROUPS, width)),
    )
