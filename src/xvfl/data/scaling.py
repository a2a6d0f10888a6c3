"""Fit the scaling of numbers to [0, 1]."""

import numpy as np

from xvfl.config import Scaling
from xvfl_serve.encoding.scale import Floats, Scale

KNOTS = 129
"""Largest number of knots of a quantile scaling."""
CENTRAL_QUANTILES = (0.01, 0.99)
MIN_CENTRAL_RANGE = 0.25
"""Scale by quantiles if the central 98 % of the values cover less than this share of the range."""


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
