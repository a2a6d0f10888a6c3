"""Find columns that repeat the label; they are rarely known at prediction."""

import math
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types

Floats = NDArray[np.float64]
MAX_ROWS = 32_768
"""Rows that are checked."""
MIN_ROWS_OF_NUMBERS, MAX_ROWS_OF_NUMBERS = 100, 8192
"""In fewer rows, a number may separate two classes by chance."""
MAX_CHANGES = 0.6
"""Most changes of the class from a number to the next larger one, as a share of the rows outside
the most frequent class. Random orders have more, ranges of several rows fewer."""
NEIGHBORS = 4
"""Nearest smaller, and nearest larger, numbers of other rows that predict a class."""
MIN_ROWS, MIN_ROWS_PER_CLASS = 50, 5
MAX_VALUES = 1000
MIN_ACCURACY = 0.985
"""Share of held-out rows whose class a column predicts if it repeats the label."""
MAX_ERROR_RATIO = 0.2
"""Most errors of such a column, as a share of the errors of always predicting one class."""
REMEDY = 'the label; ignore it unless it is known at prediction (kind "identifier" in `kinds`)'


def find_label_leaks(frame: pd.DataFrame, y: NDArray[np.int64]) -> Iterator[tuple[str, str]]:
    """Yield each column whose values, or gaps, tell the class, and a message.

    `y` are the class numbers of the rows, −1 for none.
    """
    labeled = spread_rows(np.flatnonzero(y >= 0), MAX_ROWS)
    rows, classes = frame.iloc[labeled], np.unique(y[labeled], return_inverse=True)[1]
    for name in frame.columns:
        if text := _value_leak(rows[name], classes) or _number_leak(rows[name], classes):
            yield str(name), text


def _value_leak(cells: pd.Series, classes: NDArray[np.int64]) -> str:
    """Describe a leak by the values of a column, or by which of its cells are missing."""
    codes, values = pd.factorize(cells)
    seen = codes >= 0
    # Values that all differ tell nothing of other rows.
    few = 1 <= len(values) <= MAX_VALUES and len(values) < np.count_nonzero(seen)
    by_value = _accuracy(codes[seen], classes[seen]) if few else 0.0
    by_gap = 0.0 if seen.all() else _accuracy(seen.astype(int), classes)
    accuracy, gaps = max(by_value, by_gap), by_gap > by_value
    rows = len(cells) if gaps else int(seen.sum())
    if not accuracy:
        return ""
    verb = "repeats" if len(values) <= len(np.unique(classes)) else "determines"
    shown = " and ".join(repr(str(each)) for each in values[:2])
    if accuracy == 1:
        what = "gap, and each value," if gaps else f"value, such as {shown},"
        return (
            f"each {what} belongs to one class in all {rows:,} rows checked, so it {verb} {REMEDY}"
        )
    what = "its gaps" if gaps else f"its values, such as {shown},"
    return _almost(what, accuracy, rows, verb)


def _number_leak(cells: pd.Series, classes: NDArray[np.int64]) -> str:
    """Describe a number of which ranges belong to the classes."""
    if not types.is_numeric_dtype(cells.dtype) or types.is_bool_dtype(cells.dtype):
        return ""
    numbers = cells.to_numpy(dtype=np.float64, na_value=np.nan)
    rows = spread_rows(np.flatnonzero(np.isfinite(numbers)), MAX_ROWS_OF_NUMBERS)
    numbers, classes = numbers[rows], classes[rows]
    if len(numbers) < MIN_ROWS_OF_NUMBERS or len(np.unique(classes)) < 2:
        return ""
    classes = np.unique(classes, return_inverse=True)[1]
    changes = np.count_nonzero(np.diff(classes[np.lexsort((classes, numbers))]))
    if changes > MAX_CHANGES * (len(classes) - np.bincount(classes).max()):
        return ""
    errors = sum(
        int((_nearest(numbers[train], classes[train], numbers[test]) != classes[test]).sum())
        for train, test in _folds(len(numbers))
    )
    # A strong feature may have few errors by chance.
    if not _judge(errors + 2 * math.sqrt(errors), classes):
        return ""
    return _almost("ranges of its values", 1 - errors / len(numbers), len(numbers), "determines")


def _nearest(numbers: Floats, classes: NDArray[np.int64], new: Floats) -> NDArray[np.int64]:
    """Predict the most frequent class of the nearest smaller and larger numbers."""
    order, last = np.argsort(numbers), len(numbers) - 1
    ordered = numbers[order]
    above = np.searchsorted(ordered, new)[:, None]
    near = (above + np.arange(-NEIGHBORS, NEIGHBORS)).clip(0, last)
    closest = np.abs(ordered[near] - new[:, None]).argmin(1)[:, None]
    # The nearest number counts twice, so that there are no ties at the end of a range.
    found = classes[order][np.hstack([near, np.take_along_axis(near, closest, 1)])]
    counts = np.stack([(found == each).sum(1) for each in range(classes.max() + 1)])
    predicted: NDArray[np.int64] = counts.argmax(0)
    return predicted


def _almost(what: str, accuracy: float, rows: int, verb: str) -> str:
    almost = "" if accuracy == 1 else "almost "
    return (
        f"{what} predict the class of {_floor(accuracy)} of {rows:,} rows (two-fold "
        f"cross-validation), so it {almost}{verb} {REMEDY}"
    )


def spread_rows(rows: NDArray[np.int64], limit: int) -> NDArray[np.int64]:
    """Return at most `limit` of the rows, evenly spaced: tables may be sorted by the label."""
    return rows[:: max(1, -(-len(rows) // limit))]


def _floor(share: float) -> str:
    """Format a share, rounded down: only 1 is 100 %."""
    return f"{math.floor(1e4 * share) / 1e4:.2%}"


def _accuracy(codes: NDArray[np.int64], classes: NDArray[np.int64]) -> float:
    """Return the share of held-out rows in the most frequent class of their code; 0 if no leak."""
    if len(codes) < MIN_ROWS:
        return 0.0
    shape = codes.max() + 1, classes.max() + 1
    errors = 0
    for train, test in _folds(len(codes)):
        cells = np.ravel_multi_index((codes[train], classes[train]), shape)
        counts = np.bincount(cells, minlength=shape[0] * shape[1]).reshape(shape)
        predicted = np.where(counts.any(1), counts.argmax(1), counts.sum(0).argmax())
        errors += int((predicted[codes[test]] != classes[test]).sum())
    return _judge(errors, classes)


def _judge(errors: float, classes: NDArray[np.int64]) -> float:
    """Return the accuracy with so many errors; 0 if it is that of a feature."""
    minority = len(classes) - np.bincount(classes).max()
    limit = min((1 - MIN_ACCURACY) * len(classes), MAX_ERROR_RATIO * minority)
    leaks = minority >= MIN_ROWS_PER_CLASS and errors <= limit
    return 1 - errors / len(classes) if leaks else 0.0


@lru_cache(maxsize=2)
def _folds(rows: int) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Split rows at random in two halves, each held out once: (train, test)."""
    halves = np.array_split(np.random.default_rng(0).permutation(rows), 2)
    return [(halves[0], halves[1]), (halves[1], halves[0])]
