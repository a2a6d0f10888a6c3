"""Fit the scaling of numbers to [0, 1], and the bins of scaled numbers."""

import numpy as np

from xvfl.config import Scaling
from xvfl.primitives.layout import NumberBins
from xvfl_serve.encoding.scale import Floats, Scale

KNOTS = 129
"""Largest number of knots of a quantile scaling."""
CENTRAL_QUANTILES = (0.01, 0.99)
MIN_CENTRAL_RANGE = 0.25
"""Scale by quantiles if the central 98 % of the values cover less than this share of the range."""
BIN_KNOTS = 32
"""Largest number of knots of the bins of a column."""
DECIMALS = 6
"""Precision of scaled numbers in bins; values that are closer count as one."""
FREQUENT_ROWS, FREQUENT_SHARE, MAX_FREQUENT = 20, 0.0005, 128
"""Least rows and least share of the rows of a frequent value; largest number of such values."""


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


def fit_bins(scaled: Floats) -> NumberBins:
    """Fit bins on the scaled numbers of training rows, without labels.

    Knots are quantiles of the distinct values: those of all values would coincide at a value that
    many rows have. With a knot at each value, no value needs a flag.
    """
    distinct, counts = np.unique(np.round(scaled, DECIMALS), return_counts=True)
    if len(distinct) <= BIN_KNOTS:
        return NumberBins(tuple(distinct.tolist()))
    knots = distinct[np.rint(np.linspace(0, len(distinct) - 1, BIN_KNOTS)).astype(np.int64)]
    minimum = max(FREQUENT_ROWS, FREQUENT_SHARE * len(scaled))
    most = np.argsort(-counts, kind="stable")[:MAX_FREQUENT]
    frequent = np.sort(distinct[most[counts[most] >= minimum]])
    return NumberBins(tuple(knots.tolist()), tuple(frequent.tolist()))


def _is_skewed(values: Floats) -> bool:
    low, high = np.quantile(values, CENTRAL_QUANTILES)
    return bool(high - low < MIN_CENTRAL_RANGE * (values.max() - values.min()))
