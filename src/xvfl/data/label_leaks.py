"""Find columns that repeat the label; they are rarely known at prediction."""

import math
from collections.abc import Callable, Iterator
from functools import lru_cache

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
MAX_ROWS = 32_768
"""Rows that are checked."""
MIN_ROWS_OF_NUMBERS = 100
"""In fewer rows, a number may separate two classes by chance."""
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
    labeled = np.flatnonzero(y >= 0)[:MAX_ROWS]
    rows, classes = frame.iloc[labeled], np.unique(y[labeled], return_inverse=True)[1]
    for name in frame.columns:
        if text := _value_leak(rows[name], classes) or _number_leak(rows[name], classes):
            yield str(name), text


def _value_leak(cells: pd.Series, classes: NDArray[np.int64]) -> str:
    """Describe a leak by the values of a column, or by which of its cells are missing."""
    codes, values = pd.factorize(cells)
    if not 1 <= len(values) <= MAX_VALUES:
        return ""
    seen = codes >= 0
    accuracy = _accuracy(codes[seen], classes[seen])
    if not seen.all():
        accuracy = max(accuracy, _accuracy(seen.astype(int), classes))
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
        f"its values, such as {shown}, or its gaps predict the class of {_floor(accuracy)} of "
        f"{len(cells):,} rows (two-fold cross-validation), so it almost {verb} {REMEDY}"
    )


def _number_leak(cells: pd.Series, classes: NDArray[np.int64]) -> str:
    """Describe a number with a threshold that separates two classes."""
    if not types.is_numeric_dtype(cells.dtype) or types.is_bool_dtype(cells.dtype):
        return ""
    numbers = cells.to_numpy(dtype=np.float64, na_value=np.nan)
    observed = np.isfinite(numbers)
    numbers, classes = numbers[observed], classes[observed]
    if len(numbers) < MIN_ROWS_OF_NUMBERS or np.count_nonzero(np.bincount(classes)) != 2:
        return ""
    is_second = classes == classes.max()
    errors = sum(
        int((_split(numbers[train], is_second[train])(numbers[test]) != is_second[test]).sum())
        for train, test in _folds(len(numbers))
    )
    accuracy = _judge(errors, is_second.astype(np.int64))
    if not accuracy:
        return ""
    cut = _best_threshold(numbers, is_second)[0]
    return (
        f"a threshold of {cut:g} separates the two classes in {_floor(accuracy)} of "
        f"{len(numbers):,} rows (two-fold cross-validation), so it "
        f"{'' if accuracy == 1 else 'almost '}determines {REMEDY}"
    )


def _split(numbers: Floats, is_second: Bools) -> Callable[[Floats], Bools]:
    """Fit the best threshold; return the function that predicts the class by it."""
    cut, above = _best_threshold(numbers, is_second)
    return lambda values: (values > cut) == above


def _best_threshold(numbers: Floats, is_second: Bools) -> tuple[float, bool]:
    """Return the threshold, and whether the numbers above it are of the second class."""
    order = np.argsort(numbers)
    second = is_second[order]
    ends = np.flatnonzero(np.diff(numbers[order], append=np.inf) > 0)
    # Errors if the rows up to each threshold are of the first class and the others of the second.
    wrong = (2 * np.cumsum(second) - np.arange(1, len(order) + 1))[ends] + (~second).sum()
    best = int(np.argmax(np.abs(wrong - len(order) / 2)))
    below = ends[best]
    cut = numbers[order[[below, min(below + 1, len(order) - 1)]]].mean()
    return float(cut), bool(wrong[best] <= len(order) / 2)


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


def _judge(errors: int, classes: NDArray[np.int64]) -> float:
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
