"""Piecewise linear scaling of numbers to [0, 1], and its inverse."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xvfl.config import Scaling

Floats = NDArray[np.float64]

KNOTS = 129
"""Largest number of knots of a quantile scaling."""
CENTRAL_QUANTILES = (0.01, 0.99)
MIN_CENTRAL_RANGE = 0.25
"""Scale by quantiles if the central 98 % of the values cover less than this share of the range."""


@dataclass(frozen=True)
class Scale:
    """A strictly increasing, piecewise linear map; values outside its knots are clipped."""

    knots: tuple[float, ...]
    """Knots in the column's own units."""
    scaled_knots: tuple[float, ...]
    """The scaled knots, from 0 to 1."""

    def apply(self, values: Floats) -> Floats:
        """Map values to [0, 1]."""
        return np.interp(values, self.knots, self.scaled_knots)

    def invert(self, scaled: Floats) -> Floats:
        """Map [0, 1] back to the column's units."""
        return np.interp(scaled, self.scaled_knots, self.knots)

    def far_outside(self, values: Floats) -> NDArray[np.bool_]:
        """Tell which values are outside the range by more than its width."""
        low, high = self.knots[0], self.knots[-1]
        span = high - low
        return (values < low - span) | (values > high + span)


def fit_scale(values: Floats, scaling: Scaling) -> Scale:
    """Fit the knots on training values with at least two distinct ones."""
    if scaling == "auto":
        scaling = "quantile" if _is_skewed(values) else "minmax"
    if scaling == "minmax":
        return Scale((float(values.min()), float(values.max())), (0.0, 1.0))
    ranks = np.linspace(0.0, 1.0, KNOTS)
    knots, group = np.unique(np.quantile(values, ranks), return_inverse=True)
    scaled_knots = np.bincount(group, weights=ranks) / np.bincount(group)
    scaled_knots[0], scaled_knots[-1] = 0.0, 1.0
    return Scale(tuple(knots.tolist()), tuple(scaled_knots.tolist()))


def _is_skewed(values: Floats) -> bool:
    low, high = np.quantile(values, CENTRAL_QUANTILES)
    return bool(high - low < MIN_CENTRAL_RANGE * (values.max() - values.min()))
