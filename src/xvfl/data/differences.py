"""Find pairs of correlated numbers of a table, whose difference says more than either does.

Shapes: n rows, m numbers.
"""

import numpy as np
from numpy.typing import NDArray

from xvfl.primitives.layout import Difference, Layout

MIN_ROWS = 100
"""Smallest number of rows with both numbers."""
MAX_NUMBERS = 256
"""Most numbers of a table; with more there are no differences."""
CORRELATED, EQUAL = 0.95, 1 - 1e-5
"""Smallest and largest correlation of two numbers without their signs."""
MIN_RANGE = 1e-3
"""Smallest difference that becomes 1, from one that becomes 0."""
CENTRAL = (0.005, 0.995)
"""Quantiles of a difference that become 0 and 1."""

Floats = NDArray[np.float64]


def fit_differences(
    layout: Layout, values: NDArray[np.float32], observed: NDArray[np.bool_]
) -> tuple[Difference, ...]:
    """Pair each number with the one that is most correlated with it.

    Parameters
    ----------
    layout : Layout
        The layout of a table.
    values : array of shape (n, dense)
        Encoded training rows.
    observed : array of shape (n, raw)
        Which features are observed.

    Returns
    -------
    tuple of Difference
        At most one for each number.
    """
    columns = np.array(layout.numbers, dtype=np.int64)
    if not 2 <= len(columns) <= MAX_NUMBERS:
        return ()
    x = values[:, columns].astype(np.float64)
    known = observed[:, np.array(layout.feature_of_column)[columns]]
    correlations = np.abs(_correlations(x, known))
    np.fill_diagonal(correlations, 0.0)
    best = correlations.argmax(1)
    pairs = {(min(i, j), max(i, j)) for i, j in enumerate(best.tolist())}
    wanted = [pair for pair in sorted(pairs) if CORRELATED <= correlations[pair] <= EQUAL]
    return tuple(_difference(x, known, pair, columns) for pair in wanted)


def _correlations(x: Floats, known: NDArray[np.bool_]) -> Floats:
    """Correlate the numbers (n, m) over the rows that have both; 0 with few rows. (m, m)"""
    o = known.astype(np.float64)
    x = o * (x - (x * o).sum(0) / np.maximum(o.sum(0), 1.0))
    count = o.T @ o
    share = np.maximum(count, 1.0)
    sums, squares = x.T @ o, (x * x).T @ o
    covariance = x.T @ x / share - sums * sums.T / share**2
    variance = np.maximum(squares / share - (sums / share) ** 2, 0.0)
    scale = np.sqrt(variance * variance.T)
    usable = (count >= MIN_ROWS) & (scale > 0)
    found: Floats = np.divide(covariance, scale, out=np.zeros_like(scale), where=usable)
    return found


def _difference(
    x: Floats, known: NDArray[np.bool_], pair: tuple[int, int], columns: NDArray[np.int64]
) -> Difference:
    """Fit the difference of a pair."""
    i, j = pair
    first, second = x[known[:, i] & known[:, j]][:, [i, j]].T
    slope = float(np.cov(first, second)[0, 1] / second.var(ddof=1))
    low, high = np.quantile(first - slope * second, CENTRAL)
    # Most rows may have the same difference.
    high = max(high, low + MIN_RANGE)
    return Difference(int(columns[i]), int(columns[j]), slope, float(low), float(high))
