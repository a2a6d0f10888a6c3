"""Find columns that repeat the label; they are rarely known at prediction."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types

MAX_ROWS = 32_768
"""Rows that are checked."""
MIN_ROWS_OF_NUMBERS = 100
"""In fewer rows, a number may separate two classes by chance."""
MIN_ROWS, MIN_ROWS_PER_VALUE, MIN_ROWS_PER_CLASS = 50, 10, 5
MAX_VALUES = 64
MIN_ACCURACY = 0.995
"""Share of the rows whose class a column predicts if it repeats the label."""
MAX_ERROR_RATIO = 0.1
"""Most errors of such a column, as a share of the errors of always predicting one class."""
REMEDY = 'the label; ignore it unless it is known at prediction (kind "identifier" in `kinds`)'


def find_label_leaks(frame: pd.DataFrame, y: NDArray[np.int64]) -> Iterator[tuple[str, str]]:
    """Yield each column whose values, or gaps, tell the class, and a message.

    `y` are the class numbers of the rows, −1 for none.
    """
    labeled = np.flatnonzero(y >= 0)[:MAX_ROWS]
    rows, classes = frame.iloc[labeled], y[labeled]
    for name in frame.columns:
        if text := _value_leak(rows[name], classes) or _number_leak(rows[name], classes):
            yield str(name), text


def _value_leak(cells: pd.Series, classes: NDArray[np.int64]) -> str:
    """Describe a leak by the values of a column, or by which of its cells are missing."""
    codes, values = pd.factorize(cells)
    if not 1 <= len(values) <= MAX_VALUES:
        return ""
    observed = codes >= 0
    accuracy = max(_accuracy(codes[observed], classes[observed]), _accuracy(observed, classes))
    verb = "repeats" if len(values) <= len(np.unique(classes)) else "determines"
    shown = " and ".join(repr(str(each)) for each in values[:2])
    if accuracy == 1:
        return (
            f"each value, such as {shown}, or each gap belongs to one class in all "
            f"{len(cells):,} rows checked, so it {verb} {REMEDY}"
        )
    if not accuracy:
        return ""
    return (
        f"its values, such as {shown}, or its gaps predict the class of {_floor(accuracy)} of the "
        f"{len(cells):,} rows checked, so it almost {verb} {REMEDY}"
    )


def _number_leak(cells: pd.Series, classes: NDArray[np.int64]) -> str:
    """Describe a number with a threshold that separates two classes."""
    if not types.is_numeric_dtype(cells.dtype) or types.is_bool_dtype(cells.dtype):
        return ""
    numbers = cells.to_numpy(dtype=np.float64, na_value=np.nan)
    observed = np.isfinite(numbers)
    numbers, classes = numbers[observed], classes[observed]
    if len(numbers) < MIN_ROWS_OF_NUMBERS or len(np.unique(classes)) != 2:
        return ""
    order = np.argsort(numbers)
    is_second = classes[order] == classes.max()
    ends = np.flatnonzero(np.diff(numbers[order], append=np.inf) > 0)
    # Errors if the rows up to each threshold are of the first class and the others of the second.
    wrong = (2 * np.cumsum(is_second) - np.arange(1, len(order) + 1))[ends] + (~is_second).sum()
    best = ends[np.argmax(np.abs(wrong - len(order) / 2))]
    accuracy = _accuracy(np.arange(len(order)) <= best, is_second)
    if not accuracy:
        return ""
    return (
        f"a threshold of {numbers[order[best]]:g} separates the two classes in {_floor(accuracy)} "
        f"of {len(order):,} rows, so it {'' if accuracy == 1 else 'almost '}determines {REMEDY}"
    )


def _floor(share: float) -> str:
    """Format a share, rounded down: only 1 is 100 %."""
    return f"{math.floor(1e4 * share) / 1e4:.2%}"


def _accuracy(codes: NDArray[Any], classes: NDArray[Any]) -> float:
    """Return the share of rows in the most frequent class of their code; 0 if it is no leak."""
    codes = np.unique(codes, return_inverse=True)[1]
    classes = np.unique(classes, return_inverse=True)[1]
    if len(codes) < max(MIN_ROWS, MIN_ROWS_PER_VALUE * (codes.max() + 1)):
        return 0.0
    counts = np.zeros((codes.max() + 1, classes.max() + 1), dtype=np.int64)
    np.add.at(counts, (codes, classes), 1)
    errors = len(codes) - counts.max(1).sum()
    minority = len(codes) - counts.sum(0).max()
    limit = min((1 - MIN_ACCURACY) * len(codes), MAX_ERROR_RATIO * minority)
    return 1 - errors / len(codes) if minority >= MIN_ROWS_PER_CLASS and errors <= limit else 0.0
