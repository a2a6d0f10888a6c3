"""Choose the nominal levels of intervals by the share of cells that they hold.

The intervals of columns with few different values hold more cells than their level, since their
ends are among the values. Quantiles fitted on one half of the rows show how many cells of the other
half the intervals of each level hold.

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
)
from xvfl_serve.cell_model import GROUPS

Bools = NDArray[np.bool_]
LARGE_STEP, NEARLY = 0.1, 0.05
"""Difference of the shares of neighbouring levels, and of a share that is nearly enough."""


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
    inside = np.zeros((len(cells.true), len(LEVELS)))
    for asked in (cells.half, ~cells.half):
        inside[asked] = _inside(cells, asked)
    for which, chosen in cells_of_groups(cells.groups, cells.copies * MIN_CELLS_OF_GROUP):
        shares = np.maximum.accumulate(inside[chosen].mean(0))
        found[which] = [nominal_level(shares, level) for level in LEVELS]
    return found


def nominal_level(shares: Floats, level: float) -> float:
    """Return the nominal level whose intervals hold a share `level`.

    `shares` (levels,) are those of the nominal levels `LEVELS`. Between two levels with a large
    step it is the upper one, unless the lower one holds nearly as much.
    """
    above = int(np.searchsorted(shares, level - 1e-9))
    if level >= 1 or above >= len(LEVELS):
        return 1.0
    if above == 0:
        return 0.0
    lower, upper = shares[above - 1], shares[above]
    part = (level - lower) / (upper - lower)
    if upper - lower > LARGE_STEP:
        part = float(lower < level - NEARLY)
    return float(LEVELS[above - 1] + part * (LEVELS[above] - LEVELS[above - 1]))


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
    result = np.zeros((len(true), len(LEVELS)))
    for width in range(len(LEVELS)):
        low, high = _shortest(table, value, width)
        low, high = cells.rounded(low) - 1e-6, cells.rounded(high) + 1e-6
        result[:, width] = (low <= true) & (true <= high)
    return result


def _shortest(table: Floats, value: Floats, width: int) -> tuple[Floats, Floats]:
    """Return what `shortest_intervals` does, for a level of `LEVELS`."""
    count = len(LEVELS) - width
    order = np.argsort(np.abs(np.arange(count) - (count - 1) / 2), kind="stable")
    lows, highs = table[:, order], table[:, order + width]
    outside = (value[:, None] < lows - 1e-9) | (value[:, None] > highs + 1e-9)
    best = np.arange(len(table)), (np.round(highs - lows, 9) + 2 * outside).argmin(1)
    return np.minimum(lows[best], value), np.maximum(highs[best], value)
