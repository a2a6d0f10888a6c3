"""Choose the nominal levels of intervals by the share of cells that they hold.

The intervals of columns with few different values hold more cells than their level, since their
ends are among the values. Quantiles fitted on one half of the rows show how many cells of the other
half the intervals of each level hold. What a group of cells holds beyond the level, because a share
between two of its steps is not possible, the next group holds less, by at most `LEEWAY`.

Shapes: n cells, G groups.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xvfl.model.cell_distributions import (
    LEVELS,
    MIN_CELLS,
    MIN_CELLS_OF_GROUP,
    CellDistributions,
    Floats,
    Ints,
    cells_of_groups,
    fit_quantiles,
    shortest_between,
)
from xvfl_serve.cell_model import GROUPS

Bools = NDArray[np.bool_]
LARGE_STEP, LEEWAY = 0.1, 0.1
"""Difference of the shares of neighboring levels, and how far a group's share may be below."""
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


def fit_levels(cells: NumberCells) -> Floats:
    """Return the nominal level of intervals that hold a share `LEVELS`. (G, levels)"""
    found = np.tile(LEVELS, (GROUPS, 1))
    if min(cells.half.sum(), (~cells.half).sum()) < cells.copies * MIN_CELLS:
        return found
    inside = np.zeros((len(cells.true), len(CHECKED)))
    for asked in (cells.half, ~cells.half):
        inside[asked] = _inside(cells, asked)
    excess = np.zeros(len(LEVELS))
    for which, chosen in cells_of_groups(cells.groups, cells.copies * MIN_CELLS_OF_GROUP):
        count = np.isin(cells.groups, which).sum()
        shares = np.maximum.accumulate(inside[chosen].mean(0))
        for at, level in enumerate(LEVELS[:-1]):
            # What earlier groups hold too much, this one holds less, within limits.
            wanted = level - np.clip(excess[at] / max(count, 1), -LEEWAY, LEEWAY)
            found[which, at] = nominal = nominal_level(shares, wanted, level - LEEWAY)
            excess[at] += count * (np.interp(nominal, LEVELS[CHECKED], shares) - level)
    return np.maximum.accumulate(found, 1)


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
        low, high = cells.rounded(low) - 1e-6, cells.rounded(high) + 1e-6
        result[:, at] = (low <= true) & (true <= high)
    return result
