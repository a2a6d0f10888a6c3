"""Distributions of filled cells: intervals, probabilities and draws.

The cell model predicts one value for each missing cell. Validation rows with cells hidden at random
show how the true values are distributed around it. For numbers: quantiles of the true value, or of
its difference from the completed value, in bins of the completed value. The first suits columns
whose cells often have the same value, the second accurate predictions. For categories: a factor of
the scores before a softmax, and a bias for each value. Both are fitted for each group of cells, by
the share of the variance that the factor model of `xvfl_serve.cell_model` predicts. Numbers are
scaled to [0, 1].

Shapes: n cells, N rows, G groups of cells, m numeric columns, c categorical columns, V options.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from xvfl.primitives.task import Classification
from xvfl.training.quick_optimizers import QuickLBFGS
from xvfl_serve.cell_model import GROUPS

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
LEVELS: Floats = np.arange(21) / 20
"""Levels of the stored quantiles."""
REFERENCE = 16
"""Place in `LEVELS` of the level at which the lengths of intervals are compared."""
BINS = 5
"""Bins of the completed value in a group."""
TOLERANCE = 0.03
"""Largest excess of an interval's coverage over its level; wider intervals are omitted."""
MIN_CELLS, MIN_CELLS_OF_GROUP, MIN_CELLS_OF_BINS = 20, 20, 100
"""Fewest hidden cells of a column for its distribution, of a group, and for more than one bin."""


@dataclass(frozen=True)
class CellDistributions:
    """How the true cells of a party's columns are distributed, given the completed ones."""

    edges: Floats
    """(m, G, BINS − 1) upper ends of the bins of the completed value."""
    quantiles: Floats
    """(m, G, BINS, levels) quantiles of the true value; NaN if too few cells were observed."""
    relative: Floats
    """(m, G) 1 if the quantiles are those of the difference from the completed value, else 0."""
    factors: Floats
    """(c, G) factor of the scores before the softmax: the inverse temperature."""
    biases: Floats
    """(c, G, V) added to the scaled scores; 0 for the values of hashed columns."""
    levels: Floats = field(default_factory=lambda: np.zeros((0, GROUPS, len(LEVELS))))
    """(m, G, levels) nominal level of intervals that hold a share `LEVELS`, NaN if there are none;
    of an empty array: the same levels."""
    exact: Floats = field(default_factory=lambda: np.zeros((0, GROUPS, BINS)))
    """(m, G, BINS) share of the cells that are filled with the true value; empty: not known."""

    def interval(
        self, column: int, groups: Ints, completed: Floats, rounded: Floats, level: float
    ) -> tuple[Floats, Floats]:
        """Return intervals that hold a share `level` of the true values, NaN if none does. (n,)

        Of the intervals between two quantiles that contain the completed value, rounded as it is
        decoded, the shortest. Cells of which the completed value alone holds more have none.
        """
        table = self.quantiles_of(column, groups, completed)
        low, high = np.empty(len(table)), np.empty(len(table))
        for group in np.unique(groups):
            own, nominal = groups == group, level
            if len(self.levels):
                nominal = float(np.interp(level, LEVELS, self.levels[column, group]))
            if np.isnan(nominal):
                low[own] = high[own] = np.nan
            else:
                low[own], high[own] = shortest_intervals(table[own], rounded[own], nominal)
        if len(self.exact):
            alone = self.probability_exact(column, groups, completed) > level + TOLERANCE
            low[alone] = high[alone] = np.nan
        return low, high

    def probability_exact(self, column: int, groups: Ints, completed: Floats) -> Floats:
        """Return the probability that the completed value is the true one, NaN if unknown. (n,)"""
        if not len(self.exact):
            return np.full(len(groups), np.nan)
        bins = bins_of(completed, self.edges[column, groups])
        probability: Floats = self.exact[column, groups, bins]
        return probability

    def draw(
        self, column: int, groups: Ints, completed: Floats, rng: np.random.Generator
    ) -> Floats:
        """Draw a number for each cell. (n,)"""
        table = self.quantiles_of(column, groups, completed)
        drawn = _interpolate(table, rng.random(len(table)))
        return np.where(np.isnan(drawn), completed, drawn)

    def probabilities(self, column: int, groups: Ints, scores: Floats) -> Floats:
        """Return calibrated probabilities of the options. (n, V)"""
        scaled = scores * self.factors[column, groups][:, None]
        if scores.shape[1] <= self.biases.shape[2]:
            scaled += self.biases[column, groups, : scores.shape[1]]
        exponents = np.exp(scaled - scaled.max(1, keepdims=True))
        proba: Floats = exponents / exponents.sum(1, keepdims=True)
        return proba

    def quantiles_of(self, column: int, groups: Ints, completed: Floats) -> Floats:
        """Return the quantiles of the true value of each cell. (n, levels)"""
        bins = bins_of(completed, self.edges[column, groups])
        offset = self.relative[column, groups] * completed
        table: Floats = np.clip(self.quantiles[column, groups, bins] + offset[:, None], 0, 1)
        return table


def bins_of(completed: Floats, edges: Floats) -> Ints:
    """Return the bin of each completed value. (n,); `edges` are (BINS − 1,) or (n, BINS − 1)"""
    bins: Ints = (completed[:, None] >= edges).sum(1)
    return bins


def distributions_to_tensors(by_party: Mapping[str, CellDistributions]) -> dict[str, Tensor]:
    """Return the arrays of all parties as tensors, by party and name."""
    return {
        f"{party}/{name}": torch.from_numpy(array).float()
        for party, each in by_party.items()
        for name, array in vars(each).items()
    }


def distributions_from_tensors(
    tensors: Mapping[str, Tensor], parties: Iterable[str]
) -> dict[str, CellDistributions]:
    """Build the distributions of parties from the tensors of `distributions_to_tensors`."""
    names = [each.name for each in fields(CellDistributions)]
    return {
        party: CellDistributions(
            **{
                name: tensors[f"{party}/{name}"].double().numpy()
                for name in names
                if f"{party}/{name}" in tensors
            }
        )
        for party in parties
    }


def shortest_intervals(table: Floats, inside: Floats, level: float) -> tuple[Floats, Floats]:
    """Return the shortest interval between two quantiles that contains a value of each row. (n,)

    `table` (n, levels) are the quantiles, `inside` (n,) the values.
    """
    starts = LEVELS[LEVELS + level <= 1 + 1e-9]
    # Of equally short intervals, the most central one comes first.
    starts = starts[np.argsort(np.abs(starts - (1 - level) / 2), kind="stable")]
    lows = np.stack([_interpolate(table, np.full(len(table), at)) for at in starts])
    highs = np.stack([_interpolate(table, np.full(len(table), at + level)) for at in starts])
    outside = (inside < lows - 1e-9) | (inside > highs + 1e-9)
    # Lengths are at most 1.
    chosen = (np.round(highs - lows, 9) + 2 * outside).argmin(0), np.arange(len(table))
    return np.minimum(lows[chosen], inside), np.maximum(highs[chosen], inside)


def shortest_between(table: Floats, inside: Floats, width: int) -> tuple[Floats, Floats]:
    """Return what `shortest_intervals` does, for the level at a place of `LEVELS`."""
    count = len(LEVELS) - width
    order = np.argsort(np.abs(np.arange(count) - (count - 1) / 2), kind="stable")
    lows, highs = table[:, order], table[:, order + width]
    outside = (inside[:, None] < lows - 1e-9) | (inside[:, None] > highs + 1e-9)
    best = np.arange(len(table)), (np.round(highs - lows, 9) + 2 * outside).argmin(1)
    return np.minimum(lows[best], inside), np.maximum(highs[best], inside)


def fit_quantiles(
    completed: Floats, rounded: Floats, true: Floats, groups: Ints, copies: float = 1.0
) -> tuple[Floats, Floats, Floats]:
    """Fit the edges (G, BINS − 1), quantiles (G, BINS, levels) and `relative` (G,) of a column.

    `rounded` are the completed values as they are decoded. Each true cell is there `copies` times.
    A group with too few cells uses all cells of the column.
    """
    edges = np.full((GROUPS, BINS - 1), np.inf)
    quantiles = np.full((GROUPS, BINS, len(LEVELS)), np.nan)
    relative = np.zeros(GROUPS)
    if len(true) < MIN_CELLS:
        return edges, quantiles, relative
    for which, chosen in cells_of_groups(groups, copies * MIN_CELLS_OF_GROUP):
        near, target = completed[chosen], true[chosen]
        if len(target) >= copies * MIN_CELLS_OF_BINS:
            edges[which] = np.quantile(near, np.linspace(0, 1, BINS + 1)[1:-1])
        bins = bins_of(near, edges[which[0]])
        tables = [_quantiles_by_bin(each, bins, copies) for each in (target, target - near)]
        lengths = []
        for table, offset in zip(tables, (np.zeros((1, 1)), near[:, None]), strict=True):
            shifted = np.clip(table[bins] + offset, 0, 1)
            low, high = shortest_between(shifted, rounded[chosen], REFERENCE)
            lengths.append((high - low).mean())
        relative[which] = float(lengths[1] < lengths[0])
        quantiles[which] = tables[int(lengths[1] < lengths[0])]
    return edges, quantiles, relative


def cells_of_groups(
    groups: Ints, least: float = MIN_CELLS_OF_GROUP
) -> Iterator[tuple[Ints, Bools]]:
    """Yield groups and their cells (n,): each group with enough cells, then the others with all."""
    counts = np.bincount(groups, minlength=GROUPS)
    if counts.max() == len(groups):
        yield np.arange(GROUPS), np.ones(len(groups), dtype=bool)
        return
    for group in np.flatnonzero(counts >= least):
        yield np.array([group]), groups == group
    if len(few := np.flatnonzero(counts < least)):
        yield few, np.ones(len(groups), dtype=bool)


def _quantiles_by_bin(values: Floats, bins: Ints, copies: float) -> Floats:
    """Return the quantiles of each bin; of all values for a bin with few. (BINS, levels)"""
    table = np.empty((BINS, len(LEVELS)))
    few = np.bincount(bins, minlength=BINS) < copies * MIN_CELLS
    if few.any():
        table[few] = conformal_quantiles(values, copies)
    for number in np.flatnonzero(~few):
        table[number] = conformal_quantiles(values[bins == number], copies)
    return table


def conformal_quantiles(values: Floats, copies: float = 1.0) -> Floats:
    """Return the quantiles between which a new value is as often as their levels tell. (levels,)

    A new value is as likely in each gap between ordered ones. Each is there `copies` times.
    """
    places = LEVELS * (len(values) + copies) - (copies + 1) / 2
    quantiles: Floats = np.interp(places, np.arange(len(values)), np.sort(values))
    return quantiles


def fit_scores(scores: Floats, option: Ints, groups: Ints, width: int) -> tuple[Floats, Floats]:
    """Fit the factors (G,) and biases (G, width) of a categorical column.

    A column with more values than `width` has no biases. A group with too few cells uses all cells
    of the column.
    """
    factors, biases = np.ones(GROUPS), np.zeros((GROUPS, width))
    if len(option) < MIN_CELLS:
        return factors, biases
    for which, chosen in cells_of_groups(groups):
        logits, y = torch.from_numpy(scores[chosen]).double(), torch.from_numpy(option[chosen])
        task = Classification(range(logits.shape[1]))
        weight = torch.ones(1, len(y), dtype=torch.float64)
        factor = task.fit_scale(logits[None], y[None], weight)
        if scores.shape[1] > width:
            factors[which] = factor.item()
        else:
            factors[which], bias = _fit_biases(logits, y, factor.item())
            biases[which, : scores.shape[1]] = bias.numpy()
    return factors, biases


@torch.enable_grad()
def _fit_biases(logits: Tensor, y: Tensor, factor: float) -> tuple[float, Tensor]:
    """Minimize the log-loss of factor · logits + bias, with a small penalty of the bias."""
    scale = torch.tensor(factor).double().log().requires_grad_()
    bias = torch.zeros(logits.shape[1], dtype=torch.float64, requires_grad=True)
    start = scale.detach().clone()
    optimizer = QuickLBFGS([scale, bias], max_iter=30, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        total = F.cross_entropy(logits * scale.exp() + bias, y, reduction="sum")
        total = total + bias.square().sum() + (scale - start).square()
        total.backward()  # type: ignore[no-untyped-call]
        return total

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    return float(scale.detach().exp()), bias.detach()


def _interpolate(table: Floats, at: Floats) -> Floats:
    """Look up quantiles (n, levels) at a level of each row. (n,)"""
    place = np.clip(at, 0, 1) * (len(LEVELS) - 1)
    low = np.floor(place + 1e-9).astype(int).clip(0, len(LEVELS) - 1)
    high, rows = np.minimum(low + 1, len(LEVELS) - 1), np.arange(len(table))
    rest = np.clip(place - low, 0, 1)
    values: Floats = table[rows, low] * (1 - rest) + table[rows, high] * rest
    return values
