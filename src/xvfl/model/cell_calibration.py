"""Fit the values and distributions of filled cells on rows with cells hidden at random.

Shapes: N rows, n copies of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from xvfl.data.codecs import CategoryCodec, Codec, HashedCodec, NumberCodec
from xvfl.data.encoder import TableEncoder
from xvfl.model.cell_classes import ClassCells, fit_classes
from xvfl.model.cell_distributions import (
    BINS,
    LEVELS,
    CellDistributions,
    bins_of,
    fit_quantiles,
    fit_scores,
)
from xvfl.model.cell_fills import ALL, FEW_CANDIDATES, FillCells, fit_fill
from xvfl.model.cell_fit import Cells, Tables
from xvfl.model.cell_levels import NumberCells, fit_exact, fit_levels
from xvfl.model.filled_cells import option_scores
from xvfl_serve.cell_model import GROUPS, CellModel, Predicted, Target

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Encoders = Mapping[int, TableEncoder]
ROWS, FEWEST_ROWS, MAX_REPEATS, MAX_CELLS = 1200, 400, 5, 250_000
"""Number of rows whose cells are hidden, and with many columns the fewest; fewer rows are used
several times, up to a number of cells of all parties."""
MAX_DETAILED = 300
"""Most columns of all parties with fitted levels of intervals, and with groups of cells."""
MAX_HASHED_CELLS = 500
"""Most hidden cells of a hashed column; each is compared with the whole vocabulary."""
KINDS = (("few",), ("alone",), ("few", "alone", "many", "absent"))
"""Rows of each copy, in turn: hide few cells of all parties, also all those of others, many of all
parties, or all of the party's own."""
FEW = 0.5
"""Largest share of the cells of a row where few are hidden."""


@dataclass(frozen=True)
class Hidden:
    """Cells of one column in copies of the rows, as predicted without them."""

    codec: Codec
    rows: Cells
    """The copies of the rows, as they are."""
    cells: Ints
    """(n,) the rows that have the cell."""
    predicted: Predicted
    half: NDArray[np.bool_]
    """One half of the rows."""
    copies: float
    """Number of cells for each different one."""

    def numbers(self, model: CellModel, target: Target) -> Floats:
        """Return the encoded values of a number. (n,)"""
        column = self.rows.values[:, model.place[target.columns[0]]]
        return column[self.cells].astype(np.float64)

    def classes(self, model: CellModel, target: Target) -> Ints:
        """Return the classes of a category. (n,)"""
        place, count = int(model.place[target.columns[0]]), len(target.columns)
        if not isinstance(self.codec, HashedCodec):
            found: Ints = self.rows.values[self.cells, place : place + count].argmax(1)
            return found
        same = self.rows.codes[self.cells, place][:, None] == target.codes
        return np.where(same.any(1), same.argmax(1), len(target.codes))


Key = tuple[int, int]


def calibrate_cells(
    model: CellModel, encoders: Encoders, training: Tables, tables: Tables, seed: int
) -> tuple[CellModel, dict[int, CellDistributions]]:
    """Fit how cells are filled, and the distributions of filled cells by party.

    Cells of `tables` are hidden; `training` are the rows that the model is fitted to.
    """
    hidden = _predict_hidden(model, encoders, tables, np.random.default_rng(seed))
    targets = [
        _fit_target(model, each, training[each.party], hidden[each.party, each.feature])
        for each in model.targets
    ]
    model = replace(model, targets=tuple(targets))
    for target in targets:
        key = target.party, target.feature
        raw = hidden[key].predicted
        scores = target.calibrate(raw.scores, raw.groups)
        hidden[key] = replace(hidden[key], predicted=Predicted(scores, raw.groups))
    return model, {
        party: _fit_party(model, each, party, hidden) for party, each in encoders.items()
    }


def _predict_hidden(
    model: CellModel, encoders: Encoders, tables: Tables, rng: np.random.Generator
) -> dict[Key, Hidden]:
    """Hide cells of some rows at random and predict them, by party and feature."""
    rows = len(next(iter(tables.values())).values)
    limit = min(max(MAX_CELLS // max(len(model.targets), 1), FEWEST_ROWS), ROWS)
    chosen = rng.permutation(rows)[:limit]
    cells = len(chosen) * len(model.targets)
    repeats = max(min(ROWS // max(len(chosen), 1), MAX_REPEATS, MAX_CELLS // max(cells, 1)), 1)
    at = np.tile(chosen, repeats * len(KINDS))
    each_row = np.arange(repeats * len(chosen))
    kinds = np.concatenate([np.array(each)[each_row % len(each)] for each in KINDS])
    whole = {party: table.take(at) for party, table in tables.items()}
    result: dict[Key, Hidden] = {}
    for party, table in whole.items():
        masked = _hide(whole, party, kinds, rng)
        gaps = table.observed & ~masked[party].observed
        for feature, found in model.predict(masked, len(at), party).items():
            codec = encoders[party].codecs[feature]
            # A number is predicted without its own score: it need not be hidden.
            asked = table.observed if isinstance(codec, NumberCodec) else gaps
            own = np.flatnonzero(asked[:, feature])
            row = own % max(len(chosen), 1)
            copies_of_each = len(own) / max(len(np.unique(row)), 1)
            if len(model.targets) > MAX_DETAILED:
                found = replace(found, groups=np.zeros_like(found.groups))
            result[party, feature] = Hidden(
                codec, table, own, found.take(own), row % 2 == 0, copies_of_each
            )
    return result


def _hide(
    tables: Tables, party: int, kinds: NDArray[np.str_], rng: np.random.Generator
) -> dict[int, Cells]:
    """Hide cells of each party; `kinds` (n,) tells which."""
    most = np.where(kinds == "many", 1.0, FEW)[:, None]
    result = {}
    for other, table in tables.items():
        shape = table.observed.shape
        hidden = rng.random(shape) < most * rng.random((shape[0], 1))
        hidden |= (kinds == ("absent" if other == party else "alone"))[:, None]
        result[other] = replace(table, observed=table.observed & ~hidden)
    return result


def _fit_target(model: CellModel, target: Target, training: Cells, hidden: Hidden) -> Target:
    """Fit how the cells of a feature are filled."""
    found = hidden.predicted
    if target.categorical:
        known = len(target.codes) if isinstance(hidden.codec, HashedCodec) else len(target.columns)
        classes = hidden.classes(model, target)
        flags = [(model.scores[at], model.knots[at]) for at in target.columns]
        shares = np.array([np.interp(0.0, *each) for each in flags])
        cells = ClassCells(
            found.scores, found.groups, classes, hidden.half, hidden.copies, shares, known
        )
        return fit_classes(target, cells)
    if not len(found.groups) or not np.ptp(target.scores):
        return target
    numbers = hidden.numbers(model, target)
    candidates = ALL if len(model.targets) <= MAX_DETAILED else FEW_CANDIDATES
    place = int(model.place[target.columns[0]])
    known = training.values[training.observed[:, target.feature], place].astype(np.float64)
    fill_cells = FillCells(found, numbers, known, hidden.half, hidden.copies, candidates)
    return fit_fill(target, hidden.codec, fill_cells)


def _fit_party(
    model: CellModel, encoder: TableEncoder, party: int, hidden: Mapping[Key, Hidden]
) -> CellDistributions:
    targets, numeric, categorical = model.of_party(party), [], []
    width = max((len(c.values) for c in encoder.codecs if isinstance(c, CategoryCodec)), default=0)
    for feature, codec in enumerate(encoder.codecs):
        own, target = hidden[party, feature], targets[feature]
        if isinstance(codec, HashedCodec):
            categorical.append(_fit_words(model, target, own, width))
        elif isinstance(codec, CategoryCodec):
            # Their probabilities are calibrated in the model.
            categorical.append((np.ones(GROUPS), np.zeros((GROUPS, width))))
        else:
            numeric.append(_fit_number(model, target, own))
    edges, quantiles, relative, levels, exact = zip(*numeric, strict=True) if numeric else ((),) * 5
    factors, biases = zip(*categorical, strict=True) if categorical else ((), ())
    return CellDistributions(
        np.reshape(edges, (-1, GROUPS, BINS - 1)),
        np.reshape(quantiles, (-1, GROUPS, BINS, len(LEVELS))),
        np.reshape(relative, (-1, GROUPS)),
        np.reshape(factors, (-1, GROUPS)),
        np.reshape(biases, (len(biases), GROUPS, width)),
        np.reshape(levels, (-1, GROUPS, len(LEVELS))),
        np.reshape(exact, (-1, GROUPS, BINS)),
    )


def _fit_words(
    model: CellModel, target: Target, hidden: Hidden, width: int
) -> tuple[Floats, Floats]:
    """Fit the factors and biases of a hashed column on some cells."""
    codec, found = hidden.codec, hidden.predicted
    assert isinstance(codec, HashedCodec)
    some = np.arange(len(found.groups))[:: max(len(found.groups) // MAX_HASHED_CELLS, 1)]
    option = codec.options_of(hidden.rows.codes[hidden.cells[some], model.place[target.columns[0]]])
    some, option = some[option >= 0], option[option >= 0]
    scores = option_scores(codec, target, found.scores[some])
    return fit_scores(scores, option, found.groups[some], width)


def _fit_number(
    model: CellModel, target: Target, hidden: Hidden
) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """Fit edges, quantiles, `relative`, levels and shares of exact cells of a number."""
    codec, groups = hidden.codec, hidden.predicted.groups

    def rounded(encoded: Floats) -> Floats:
        return codec.rounded(encoded) if isinstance(codec, NumberCodec) else encoded

    near, true = target.fill(hidden.predicted), hidden.numbers(model, target)
    edges, quantiles, relative = fit_quantiles(near, rounded(near), true, groups, hidden.copies)
    cells = NumberCells(near, true, groups, hidden.half, hidden.copies, rounded)
    exact, levels = fit_exact(cells, edges), np.tile(LEVELS, (GROUPS, 1))
    if len(model.targets) <= MAX_DETAILED:
        levels = fit_levels(cells, exact[groups, bins_of(near, edges[groups])])
    return edges, quantiles, relative, levels, exact
