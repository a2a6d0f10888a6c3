"""Choose the nominal levels of intervals by the share of cells that they hold.

The intervals of columns with few different values hold more cells than their level, since their
ends are among the values. Quantiles fitted on one half of the rows show how many cells of the other
half the intervals of each level hold. What a group of cells holds beyond the level, because a share
between two of its steps is not possible, the next group holds less, by at most `LEEWAY`. Cells get
no interval where each holds far more than its level: if most of them are filled with the true
value, or of a number with two values.

Shapes: n cells, G groups.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xvfl.model.cell_distributions import (
    BINS,
    LEVELS,
    MIN_CELLS,
    MIN_CELLS_OF_GROUP,
    TOLERANCE,
    CellDistributions,
    Floats,
    Ints,
    bins_of,
    cells_of_groups,
    fit_quantiles,
    shortest_between,
)
from xvfl_serve.cell_model import GROUPS

Bools = NDArray[np.bool_]
EQUAL = 1e-6
"""Largest difference of equal values."""
LARGE_STEP, LEEWAY, FARTHEST = 0.1, 0.1, 0.15
"""Largest difference of the shares of neighboring levels; how far a group's target may be moved to
balance other groups; and how far the share of an interval may be from its level."""
CHECKED = np.array([0, *range(8, len(LEVELS))])
"""Places in `LEVELS` of the levels whose intervals are counted."""


@dataclass(frozen=True)
class NumberCells:
    """Hidden cells of a number, encoded."""

    completed: Floats
    true: Floats
    groups: Ints
    half: Bools
    """(n,) one half of the rows; all copies of a row are in the same half."""
    copies: float
    """Number of cells for each different one."""
    rounded: Callable[[Floats], Floats]
    """Rounds encoded numbers as they are decoded."""


def fit_exact(cells: NumberCells, edges: Floats) -> Floats:
    """Return the share of cells that are filled with the true value, by group and bin. (G, BINS)

    The share of a bin with few cells is near that of the column.
    """
    if not len(cells.true):
        return np.full((GROUPS, BINS), np.nan)
    right = np.abs(cells.rounded(cells.completed) - cells.true) < EQUAL
    place = cells.groups * BINS + bins_of(cells.completed, edges[cells.groups])
    sums, counts = (np.bincount(place, each, GROUPS * BINS) for each in (right, None))
    prior = cells.copies * MIN_CELLS
    shares: Floats = (sums + prior * right.mean()) / (counts + prior)
    return shares.reshape(GROUPS, BINS)


def fit_levels(cells: NumberCells, exact: Floats) -> Floats:
    """Return the nominal level of intervals that hold a share `LEVELS`. (G, levels)

    `exact` (n,) is the probability that each cell is filled with the true value: where it is above
    the level, a cell has no interval. The level is NaN where no interval holds about its share.
    """
    found = np.tile(LEVELS, (GROUPS, 1))
    if min(cells.half.sum(), (~cells.half).sum()) < cells.copies * MIN_CELLS:
        return found
    inside = np.zeros((len(cells.true), len(CHECKED)))
    for asked in (cells.half, ~cells.half):
        inside[asked] = _inside(cells, asked)
    excess = np.zeros(len(LEVELS))
    for which, chosen in cells_of_groups(cells.groups, cells.copies * MIN_CELLS_OF_GROUP):
        values, counts, shares = _shares_below(exact[chosen], inside[chosen])
        size = np.isin(cells.groups, which).sum() / chosen.sum()
        for at, level in enumerate(LEVELS[:-1]):
            kept = int(np.searchsorted(values, level + TOLERANCE, "right")) - 1
            if kept < 0:
                found[which, at] = np.nan
                continue
            # What earlier groups hold too much, this one holds less, within limits.
            count = size * counts[kept]
            wanted = level - np.clip(excess[at] / max(count, 1), -LEEWAY, LEEWAY)
            nominal = nominal_level(shares[kept], wanted, level - FARTHEST)
            held = np.interp(nominal, LEVELS[CHECKED], shares[kept])
            near = np.abs(shares[kept] - level) <= FARTHEST
            far = held > level + FARTHEST and not near.any()
            found[which, at] = np.nan if far else nominal
            excess[at] += 0 if far else count * (held - level)
    return np.where(np.isnan(found), np.nan, np.fmax.accumulate(found, 1))


def _shares_below(exact: Floats, inside: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the distinct values of `exact`, and of the cells up to each: count and shares."""
    values, place = np.unique(exact, return_inverse=True)
    flags = (place == np.arange(len(values))[:, None]).astype(float)
    counts, sums = flags.sum(1).cumsum(), (flags @ inside).cumsum(0)
    return values, counts, np.maximum.accumulate(sums / counts[:, None], 1)


def nominal_level(shares: Floats, level: float, least: float) -> float:
    """Return the nominal level whose intervals hold a share `level`.

    `shares` are those of the levels `CHECKED`. Between two levels with a large step it is the
    nearer one that holds at least a share `least`.
    """
    grid = LEVELS[CHECKED]
    above = int(np.searchsorted(shares, level - 1e-9))
    if above >= len(grid):
        return 1.0
    if above == 0:
        return 0.0
    lower, upper = shares[above - 1], shares[above]
    part = (level - lower) / (upper - lower)
    if upper - lower > LARGE_STEP and above > 1:
        part = float(lower < least or part > 0.5)
    return float(grid[above - 1] + part * (grid[above] - grid[above - 1]))


def _inside(cells: NumberCells, asked: Bools) -> Floats:
    """Return which cells the intervals of each level hold, fitted on the others. (n, levels)"""
    near, true, groups = cells.completed, cells.true, cells.groups
    rest = ~asked
    edges, quantiles, relative = fit_quantiles(
        near[rest], cells.rounded(near[rest]), true[rest], groups[rest], cells.copies
    )
    none = np.zeros((0, GROUPS))
    column = CellDistributions(edges[None], quantiles[None], relative[None], none, none[..., None])
    table = column.quantiles_of(0, groups[asked], near[asked])
    value, true = cells.rounded(near[asked]), true[asked]
    result = np.zeros((len(true), len(CHECKED)))
    for at, width in enumerate(CHECKED[1:], 1):
        low, high = shortest_between(table, value, width)
        low, high = cells.rounded(low) - EQUAL, cells.rounded(high) + EQUAL
        result[:, at] = (low <= true) & (true <= high)
    return result
