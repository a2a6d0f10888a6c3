"""The scaling of numbers to [0, 1]: one piecewise linear map through knots, and its inverse."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xvfl.config import Scaling

Floats = NDArray[np.float64]

KNOTS = 129
"""Most knots of a quantile scaling."""
CENTRAL = (0.01, 0.99)
"""The central 98 % of the training values ..."""
CROWDED = 0.25
"""... is crowded when it covers less than this share of their range: then use quantiles."""


@dataclass(frozen=True)
class Scale:
    """A strictly rising, piecewise linear map; what lies outside its knots is clipped."""

    inner: tuple[float, ...]
    """Knots in the column's own units."""
    outer: tuple[float, ...]
    """Where each knot goes: from 0 to 1."""

    def apply(self, values: Floats) -> Floats:
        """Map values to [0, 1]."""
        return np.interp(values, self.inner, self.outer)

    def invert(self, scaled: Floats) -> Floats:
        """Map [0, 1] back to the column's units."""
        return np.interp(scaled, self.outer, self.inner)

    def far_outside(self, values: Floats) -> NDArray[np.bool_]:
        """Say which values lie outside the range by more than the range itself."""
        low, high = self.inner[0], self.inner[-1]
        span = high - low
        return (values < low - span) | (values > high + span)


def fit_scale(values: Floats, scaling: Scaling) -> Scale:
    """Fit the knots on training values, at least two of them distinct."""
    if scaling == "auto":
        scaling = "quantile" if _crowded(values) else "minmax"
    if scaling == "minmax":
        return Scale((float(values.min()), float(values.max())), (0.0, 1.0))
    ranks = np.linspace(0.0, 1.0, KNOTS)
    knots, group = np.unique(np.quantile(values, ranks), return_inverse=True)
    outer = np.bincount(group, weights=ranks) / np.bincount(group)
    outer[0], outer[-1] = 0.0, 1.0
    return Scale(tuple(knots.tolist()), tuple(outer.tolist()))


def _crowded(values: Floats) -> bool:
    low, high = np.quantile(values, CENTRAL)
    return bool(high - low < CROWDED * (values.max() - values.min()))
