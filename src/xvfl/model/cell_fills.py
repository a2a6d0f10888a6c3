"""Fit the map from predicted scores of numbers to the values that fill cells.

In bins of the predicted score, the value is the mean, the median or between; or one value for all
cells. Each kind of map is fitted on one half of the rows and compared on the other.

Shapes: n cells, x places, M maps, B blends.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xvfl.data.codecs import Codec
from xvfl_serve.cell_model import GROUPS, Floats, Ints, Predicted, Target

Bools = NDArray[np.bool_]
MIN_CELLS, MAX_BINS = 40, 20
"""Fewest cells of a bin, and most bins."""
BLENDS = np.linspace(0, 1, 9)[:, None]
"""Weights of the mean against the median."""
ROOT_WEIGHT = 2.0
"""Weight of the root mean square error against the mean absolute error."""
PENALTY = 10.0
"""Weight of a mean absolute error beyond that of the median."""
QUANTILES = np.linspace(0.05, 0.95, 11)
"""Levels of the differences of scores that stand for their distribution."""
BETTER = 0.995
"""Relative error below which another map replaces a simpler one."""
SHRINKS = (1.0, 0.67, 0.33)
"""Factors of the predicted score."""


@dataclass(frozen=True)
class FillCells:
    """Hidden cells of a number."""

    predicted: Predicted
    encoded: Floats
    """(n,) true values."""
    half: Bools
    """(n,) one half of the rows; all copies of a row are in the same half."""
    copies: float
    """Number of cells for each different one."""


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
    least = cells.copies * MIN_CELLS
    scores, true = cells.predicted.scores[:, 0], scale.numbers(cells.encoded)
    every = np.arange(len(true))
    parts = [np.flatnonzero(cells.predicted.groups == group) for group in range(GROUPS)]
    parts = [each if 4 * len(each) >= 10 * least else every for each in parts]
    bins = [_bins(scores[each], least)[0] for each in parts]
    points = np.unique(np.concatenate([target.scores, *bins]))
    rest = np.interp(cells.encoded, scale.knots, scale.scores)

    @cache
    def curve(number: int) -> Floats:
        part = parts[number]
        hidden = _Hidden(scale, scores[part], true[part], rest[part], least)
        return scale.encode(_best_curve(hidden, cells.half[part], points))

    same = [next(at for at, each in enumerate(parts) if each is part) for part in parts]
    return replace(target, scores=points, filled=np.concatenate([curve(at) for at in same]))


@dataclass(frozen=True)
class _Hidden:
    """Hidden cells of a group."""

    scale: _Scale
    scores: Floats
    """(n,) predicted."""
    true: Floats
    """(n,) in the column's units."""
    true_scores: Floats
    least: float

    def take(self, cells: Bools) -> "_Hidden":
        """Select cells."""
        return replace(
            self,
            scores=self.scores[cells],
            true=self.true[cells],
            true_scores=self.true_scores[cells],
        )

    def maps(self, at: Floats) -> Floats:
        """Fit all maps; return the median and the mean at some scores. (M, 2, x)"""
        medians = np.median(self.true), self.true.mean()
        found = [np.broadcast_to(np.array(medians)[:, None], (2, len(at)))]
        centers, members = _bins(self.scores, self.least)
        for factor in SHRINKS:
            rest = self.true_scores - factor * self.scores
            shifts = np.array([np.quantile(rest[each], QUANTILES) for each in members])
            varied = [
                self.scale.values(factor * at + np.interp(at, centers, each)) for each in shifts.T
            ]
            found.append(np.stack([varied[len(varied) // 2], np.mean(varied, 0)]))
        in_bins = [np.array([f(self.true[each]) for each in members]) for f in (np.median, np.mean)]
        found.append(np.stack([np.interp(at, centers, each) for each in in_bins]))
        return np.stack(found)


def _best_curve(cells: _Hidden, half: Bools, points: Floats) -> Floats:
    """Return the values of the best map at some scores. (x,)"""
    squares, absolute, limit = 0.0, 0.0, 0.0
    for asked in (half, ~half):
        learned, own = cells.take(~asked), cells.take(asked)
        if not len(learned.true) or not len(own.true):
            continue
        maps = learned.maps(own.scores)
        values = BLENDS * maps[:, None, 1] + (1 - BLENDS) * maps[:, None, 0]
        error = cells.scale.rounded(values) - own.true
        squares = squares + (error**2).sum(2)
        absolute = absolute + np.abs(error).sum(2)
        limit += float(np.abs(np.median(learned.true) - own.true).sum())
    count = len(cells.true)
    losses = ROOT_WEIGHT * np.sqrt(np.asarray(squares) / count) + np.asarray(absolute) / count
    # A column must not be filled worse than by its median.
    losses += PENALTY * np.maximum(np.asarray(absolute) - limit, 0) / count
    which, blend = _first_best(losses) if losses.ndim else (0, 0)
    median, mean = cells.maps(points)[which]
    weight = float(BLENDS[blend, 0])
    curve: Floats = weight * mean + (1 - weight) * median
    return curve


def _first_best(losses: Floats) -> tuple[int, int]:
    """Return map and blend of the smallest loss, or of a simpler map that is nearly as good."""
    chosen = 0
    for number, each in enumerate(losses.min(1)):
        if each < BETTER * losses[chosen].min():
            chosen = number
    return chosen, int(losses[chosen].argmin())


def _bins(scores: Floats, least: float) -> tuple[Floats, Sequence[Ints]]:
    """Split cells into bins of their predicted scores; return the mean scores, and the cells."""
    order = np.argsort(scores, kind="stable")
    count = int(np.clip(len(order) // least, 1, MAX_BINS))
    members = np.array_split(order, count)
    return np.array([scores[each].mean() for each in members]), members
