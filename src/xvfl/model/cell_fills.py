"""Fit the map from predicted scores of numbers to the values that fill cells.

In bins of the predicted score, the value is the mean, the median or between; or one value for all
cells. Each kind of map is fitted on one half of the rows and compared on the other.

Shapes: n cells, x places, M maps, B blends.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xvfl.data.codecs import Codec
from xvfl.model.cell_distributions import cells_of_groups
from xvfl_serve.cell_model import GROUPS, Floats, Ints, Predicted, Target

Bools = NDArray[np.bool_]
MIN_CELLS, MIN_CELLS_OF_GROUP, MAX_BINS = 40, 100, 20
"""Fewest different cells of a bin and of a group, and most bins."""
BLENDS = np.linspace(0, 1, 9)[:, None]
"""Weights of the mean against the median."""
ROOT_WEIGHT = 2.0
"""Weight of the root mean square error against the mean absolute error."""
PENALTY, CERTAINTY = 10.0, 1.5
"""Weight of a mean absolute error beyond that of the median, and the standard errors added to it:
the fewer cells, the nearer to the median."""
QUANTILES = np.linspace(0.05, 0.95, 11)
"""Levels of the differences of scores that stand for their distribution."""
BETTER = 0.995
"""Relative error below which another map replaces a simpler one."""
SHRINKS = np.array([[1.0], [0.67], [0.33]])
"""Factors of the predicted score."""


@dataclass(frozen=True)
class Candidates:
    """Maps and blends to choose from."""

    shrinks: Floats
    blends: Floats
    halves: int = 2
    """Number of halves of the rows that are evaluated with maps fitted on the other half."""


ALL, FEW_CANDIDATES = Candidates(SHRINKS, BLENDS), Candidates(SHRINKS[:1], BLENDS[::4], 1)
"""The candidates for a column; few where there are many columns."""


@dataclass(frozen=True)
class FillCells:
    """Hidden cells of a number."""

    predicted: Predicted
    encoded: Floats
    """(n,) true values."""
    training: Floats
    """Encoded values of the training rows; their median and mean are more certain."""
    half: Bools
    """(n,) one half of the rows; all copies of a row are in the same half."""
    copies: float
    """Number of cells for each different one."""
    candidates: Candidates = ALL


@dataclass(frozen=True)
class _Scale:
    """From predicted scores to the values of a column, in its own units."""

    scores: Floats
    knots: Floats
    codec: Any
    """Of a number, date or duration."""

    def values(self, scores: Floats) -> Floats:
        """Return the values of scores."""
        result: Floats = self.codec.scale.invert(np.interp(scores, self.scores, self.knots))
        return result

    def numbers(self, encoded: Floats) -> Floats:
        """Return encoded values in the column's units."""
        result: Floats = self.codec.scale.invert(encoded)
        return result

    def encode(self, numbers: Floats) -> Floats:
        """Return numbers as encoded values."""
        result: Floats = self.codec.scale.apply(numbers)
        return result

    def rounded(self, numbers: Floats) -> Floats:
        """Round numbers as they are decoded."""
        return np.rint(numbers) if getattr(self.codec, "whole", False) else numbers


def fit_fill(target: Target, codec: Codec, cells: FillCells) -> Target:
    """Choose the values of a number by group of cells; small groups have the map of all."""
    scale = _Scale(target.scores, target.filled.reshape(GROUPS, -1)[0], codec)
    scores, true = cells.predicted.scores[:, 0], scale.numbers(cells.encoded)
    rest = np.interp(cells.encoded, scale.knots, scale.scores)
    known = scale.numbers(cells.training) if len(cells.training) else true
    ends = np.array([[np.median(known)], [known.mean()]])
    every = _Hidden(scale, scores, true, rest, ends, cells.half, cells.copies, cells.candidates)
    least = MIN_CELLS_OF_GROUP * cells.copies
    parts = [(w, every.take(c)) for w, c in cells_of_groups(cells.predicted.groups, least)]
    points = np.unique(np.concatenate([target.scores, *(each.bins()[0] for _, each in parts)]))
    filled = np.zeros((GROUPS, len(points)))
    for which, each in parts:
        filled[which] = scale.encode(_best_curve(each, points))
    return replace(target, scores=points, filled=filled.reshape(-1))


@dataclass(frozen=True)
class _Hidden:
    """Hidden cells of a group."""

    scale: _Scale
    scores: Floats
    """(n,) predicted."""
    true: Floats
    """(n,) in the column's units."""
    true_scores: Floats
    constants: Floats
    """(2, 1) median and mean of the column."""
    half: Bools
    copies: float
    candidates: Candidates

    def take(self, cells: Bools) -> "_Hidden":
        """Select cells."""
        return replace(
            self,
            scores=self.scores[cells],
            true=self.true[cells],
            true_scores=self.true_scores[cells],
            half=self.half[cells],
        )

    def bins(self) -> tuple[Floats, Ints]:
        """Split cells into bins of equal size; return the mean predicted scores, and the cells."""
        count = int(np.clip(len(self.scores) // (MIN_CELLS * self.copies), 1, MAX_BINS))
        size = len(self.scores) // count
        starts = np.arange(count) * len(self.scores) // count
        members = np.argsort(self.scores, kind="stable")[starts[:, None] + np.arange(size)]
        return self.scores[members].mean(1), members

    def maps(self, at: Floats) -> Floats:
        """Fit all maps; return the median and the mean at some scores. (M, 2, x)"""
        centers, members = self.bins()
        shrinks, (count, size) = self.candidates.shrinks, members.shape
        levels = np.rint(QUANTILES * (size - 1)).astype(int)
        rest = (self.true_scores - shrinks * self.scores)[:, members]
        rest = np.sort(rest, 2)[:, :, levels].transpose(0, 2, 1).reshape(-1, count)
        shifted = _curves(at, centers, rest).reshape(len(shrinks), len(levels), len(at))
        varied = self.scale.values(shrinks[:, None] * at + shifted)
        true = np.sort(self.true[members], 1)
        in_bins = _curves(at, centers, np.stack([true[:, size // 2], true.mean(1)]))
        found = [np.stack([each[len(levels) // 2], each.mean(0)]) for each in varied]
        return np.stack([np.repeat(self.constants, len(at), 1), *found, in_bins])


def _best_curve(cells: _Hidden, points: Floats) -> Floats:
    """Return the values of the best map at some scores. (x,)"""
    errors, limits, blends = [], [], cells.candidates.blends
    for asked in (cells.half, ~cells.half)[: cells.candidates.halves]:
        learned, own = cells.take(~asked), cells.take(asked)
        if not len(learned.true) or not len(own.true):
            continue
        maps = learned.maps(points)
        values = blends * maps[:, None, 1] + (1 - blends) * maps[:, None, 0]
        filled = _curves(own.scores, points, values.reshape(-1, len(points)))
        errors.append(cells.scale.rounded(filled) - own.true)
        limits.append(np.abs(cells.constants[0] - own.true))
    which, blend = 0, 0
    if errors:
        losses = _losses(np.concatenate(errors, 1), np.concatenate(limits), cells.copies)
        which, blend = _first_best(losses.reshape(-1, len(blends)))
    median, mean = cells.maps(points)[which]
    weight = float(blends[blend, 0])
    curve: Floats = weight * mean + (1 - weight) * median
    return curve


def _losses(errors: Floats, limits: Floats, copies: float) -> Floats:
    """Return the loss of each map and blend; `limits` are the median's absolute errors. (M · B,)"""
    absolute = np.abs(errors)
    more = absolute - limits
    # A column must not be filled worse than by its median.
    excess = more.mean(1) + CERTAINTY * more.std(1) * np.sqrt(copies / len(limits))
    root = np.sqrt((errors**2).mean(1))
    losses: Floats = ROOT_WEIGHT * root + absolute.mean(1) + PENALTY * np.maximum(excess, 0)
    return losses


def _first_best(losses: Floats) -> tuple[int, int]:
    """Return map and blend of the smallest loss, or of a simpler map that is nearly as good."""
    chosen = 0
    for number, each in enumerate(losses.min(1)):
        if each < BETTER * losses[chosen].min():
            chosen = number
    return chosen, int(losses[chosen].argmin())


def _curves(at: Floats, points: Floats, values: Floats) -> Floats:
    """Interpolate curves (curves, points) linearly, as `np.interp` does. (curves, x)"""
    if len(points) == 1:
        return np.repeat(values, len(at), 1)
    upper = np.searchsorted(points, at).clip(1, len(points) - 1)
    width = np.maximum(points[upper] - points[upper - 1], 1e-12)
    part = ((at - points[upper - 1]) / width).clip(0, 1)
    found: Floats = values[:, upper - 1] * (1 - part) + values[:, upper] * part
    return found
