"""Read numeric labels, the targets of regression.

A number is stored as a code: the bits of a float32 of its distance from the center of all labels.
Codes are not negative; −1 is the code of a row without label.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types

from xvfl.data.label_leaks import REMEDY
from xvfl.data.parse import mask_missing, read_numbers
from xvfl.errors import InputError, warn
from xvfl_serve.encoding.cells import NA_TEXTS, MissingCells

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]
FEW_VALUES = 2
"""A label with no more distinct values than this may be a class."""
MIN_LEAK_ROWS, LEAK_CORRELATION, LEAK_EQUAL = 50, 0.999, 0.98


@dataclass(frozen=True)
class TargetValues:
    """The center and spread of the labels, relative to which codes store numbers."""

    center: float
    spread: float
    few_values: tuple[float, ...] = ()
    """The distinct numbers, if there are no more than `FEW_VALUES`."""
    stratum = "least(code, 0)"
    """SQL expression of the stratum of a code: all labeled rows are split as one stratum, 0."""

    def strata(self, codes: Codes) -> Codes:
        """Return 0 for labeled rows, −1 for others."""
        return np.minimum(codes, 0)

    def codes(self, cells: pd.Series) -> Codes:
        """Return the code of each cell's number, −1 where missing."""
        numbers = parse_targets(cells, "labels").to_numpy()
        distance = ((numbers - self.center) / self.spread).astype(np.float32)
        bits: Codes = distance.view(np.uint32).astype(np.int64)
        return np.where(np.isnan(numbers), -1, bits)

    def numbers(self, codes: Codes) -> Floats:
        """Return the numbers of codes, NaN where missing."""
        distance = codes.astype(np.uint32).view(np.float32).astype(np.float64)
        return np.where(codes < 0, np.nan, distance * self.spread + self.center)


def parse_targets(cells: pd.Series, where: str) -> pd.Series:
    """Convert labels to numbers, NaN where missing; reject what are not finite numbers."""
    if types.is_bool_dtype(cells.dtype) or isinstance(cells.dtype, pd.CategoricalDtype):
        raise _not_numbers(where, f"a {cells.dtype} column")
    if types.is_datetime64_any_dtype(cells.dtype) or types.is_timedelta64_dtype(cells.dtype):
        raise _not_numbers(where, f"a {cells.dtype} column")
    cells = mask_missing(cells, MissingCells.of(NA_TEXTS))
    numbers = read_numbers(cells, where)
    wrong = cells.notna().to_numpy(dtype=bool) & ~np.isfinite(numbers)
    if wrong.any():
        raise _not_numbers(where, repr(cells[wrong].tolist()[0]))
    return pd.Series(numbers, index=cells.index, name=cells.name)


def _not_numbers(where: str, found: str) -> InputError:
    return InputError(
        f"{where}: expected finite numbers for regression, got {found}; convert the column, or use "
        'XVFLClassifier (task = "classification" in a configuration file) for classes'
    )


def moments(chunks: Iterable[Floats]) -> tuple[int, float, float]:
    """Return the number, mean and standard deviation of numbers in chunks; NaN does not count."""
    count, mean, squares = 0, 0.0, 0.0
    for chunk in chunks:
        numbers = chunk[~np.isnan(chunk)]
        if not len(numbers):
            continue
        size, center = len(numbers), float(numbers.mean())
        shift = center - mean
        squares += float(np.square(numbers - center).sum())
        squares += shift**2 * count * size / (count + size)
        mean += shift * size / (count + size)
        count += size
    return count, mean, math.sqrt(squares / count) if count else 0.0


def find_targets(
    chunks: Iterable[pd.Series], where: str, min_values: int = 2, allow_missing: bool = False
) -> TargetValues:
    """Find center and spread of the labels; warn about missing ones, reject a constant."""
    rows, distinct = 0, set[float]()

    def numbers() -> Iterator[Floats]:
        nonlocal rows
        for cells in chunks:
            rows += len(cells)
            parsed = parse_targets(cells, where)
            if len(distinct) <= FEW_VALUES:
                distinct.update(parsed.dropna().unique()[: FEW_VALUES + 1].tolist())
            yield parsed.to_numpy()

    labeled, mean, std = moments(numbers())
    if labeled < rows and not allow_missing:
        text = f"{where}: left out {rows - labeled} of {rows} rows without a label"
        warn(text)
    if len(distinct) < min_values:
        found = f"only the number {distinct.pop():g}" if distinct else "no label at all"
        raise InputError(
            f"{where}: expected at least {min_values} different numbers, but found {found}; check "
            "the column"
        )
    few = tuple(sorted(distinct)) if len(distinct) <= FEW_VALUES else ()
    return TargetValues(mean, std if std > 0 else 1.0, few)


def warn_few_values(values: TargetValues, where: str) -> None:
    """Warn if the labels are so few different numbers that they may be classes."""
    if values.few_values:
        shown = " and ".join(f"{each:g}" for each in values.few_values)
        warn(
            f"{where}: the only numbers are {shown}, which look like classes; use XVFLClassifier "
            '(task = "classification" in a configuration file) to predict probabilities'
        )


def find_target_leaks(frame: pd.DataFrame, targets: Floats) -> Iterator[tuple[str, str]]:
    """Yield each column of numbers that rises or falls with the target, and a message."""
    for name in frame.columns:
        if not types.is_numeric_dtype(frame[name].dtype) or types.is_bool_dtype(frame[name].dtype):
            continue
        column = frame[name].to_numpy(dtype=np.float64, na_value=np.nan)
        both = np.isfinite(column) & np.isfinite(targets)
        x, y = column[both], targets[both]
        if len(x) < MIN_LEAK_ROWS or not x.std() > 0 or not y.std() > 0:
            continue
        ranks = pd.DataFrame([x, y]).rank(axis=1).to_numpy()
        correlation = max(abs(float(np.corrcoef(*each)[0, 1])) for each in ([x, y], ranks))
        equal = float((x == y).mean())
        if correlation >= LEAK_CORRELATION:
            found = f"its correlation with the label is {correlation:.5f} in {len(x):,} rows, so it"
            yield str(name), f"{found} repeats {REMEDY}"
        elif equal >= LEAK_EQUAL and len(np.unique(y)) > 2:
            found = f"it equals the label in {equal:.1%} of {len(x):,} rows, so it"
            yield str(name), f"{found} almost repeats {REMEDY}"
