"""Piecewise linear scaling of numbers to [0, 1], and its inverse."""

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
DIGITS = 7
"""Significant digits of numbers that were scaled as float32."""


@dataclass(frozen=True)
class Scale:
    """A strictly increasing, piecewise linear map; values outside its knots are clipped."""

    knots: tuple[float, ...]
    """Knots in the column's own units."""
    scaled_knots: tuple[float, ...]
    """The scaled knots, from 0 to 1."""

    @cached_property
    def bounds(self) -> tuple[float, float]:
        """Values outside these are far outside the range: by more than its width."""
        low, high = self.knots[0], self.knots[-1]
        return low - (high - low), high + (high - low)

    @cached_property
    def _arrays(self) -> tuple[Floats, Floats]:
        return np.array(self.knots), np.array(self.scaled_knots)

    def apply(self, values: Floats) -> Floats:
        """Map values to [0, 1]."""
        knots, scaled_knots = self._arrays
        return np.interp(values, knots, scaled_knots)

    def apply_one(self, value: float) -> float:
        """Map one value to [0, 1], as `apply` does."""
        return _interpolate(value, self.knots, self.scaled_knots)

    def invert(self, scaled: Floats) -> Floats:
        """Map [0, 1] back to the column's units."""
        knots, scaled_knots = self._arrays
        return np.interp(scaled, scaled_knots, knots)

    def invert_one(self, scaled: float) -> float:
        """Map one number back to the column's units, as `invert` does."""
        return _interpolate(scaled, self.scaled_knots, self.knots)

    def far_outside(self, values: Floats) -> NDArray[np.bool_]:
        """Tell which values are outside the range by more than its width."""
        low, high = self.bounds
        return (values < low) | (values > high)


def _interpolate(x: float, knots: tuple[float, ...], values: tuple[float, ...]) -> float:
    if x <= knots[0]:
        return values[0]
    if x >= knots[-1]:
        return values[-1]
    at = bisect_right(knots, x) - 1
    slope = (values[at + 1] - values[at]) / (knots[at + 1] - knots[at])
    return slope * (x - knots[at]) + values[at]


def significant(number: float) -> float:
    """Round away the error of float32: 1492.50001 is 1492.5."""
    return float(f"{number:.{DIGITS}g}")
