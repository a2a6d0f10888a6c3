"""Find integers that are codes, such as the number of a school.

The means of other columns change little from a number to the next one. From a code to the next one
they change as much as between any two codes.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain, combinations

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types

from xvfl.config import TableOptions
from xvfl.data.schema import SET_CATEGORY, ColumnSummary

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
MAX_ROWS, MAX_TARGETS, MIN_TARGETS, MAX_PAIRS = 8192, 24, 4, 6000
"""Rows, and other columns, that are compared; fewer columns in wide tables."""
MIN_CODES, MAX_CODES, MIN_ROWS_PER_CODE = 30, 1000, 5
MAX_GAP, MAX_SHARE = 100, 0.5
"""Mean distance of neighboring codes unless all have as many digits, and share of the rows with one
of them."""
MAX_VALUES = 20
"""Values of a text that is compared."""
MIN_SIGNAL = 4.0
"""Variance of the means of another column between codes, relative to that by chance."""
MIN_ROUGHNESS = 0.7
"""Mean squared difference of neighboring means, relative to that of any two means."""
MAX_RANK_CORRELATION = 0.45
"""Correlation of ranks with another column; that of prices and sizes is larger."""


def add_code_warnings(
    frame: pd.DataFrame, summaries: Iterable[ColumnSummary], options: TableOptions
) -> list[ColumnSummary]:
    """Add warnings about numbers that look like codes, unless their kind is declared or doubted."""
    summaries = list(summaries)
    doubted = [
        each.name
        for each in summaries
        if each.kind == "number"
        and not options.kind_of(each.name)[0]
        and not any(SET_CATEGORY in text for text in each.warnings)
    ]
    found = dict(find_code_numbers(frame, doubted))
    return [each.warned(found.get(each.name)) for each in summaries]


def find_code_numbers(frame: pd.DataFrame, columns: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield each of the columns that looks like codes, and a message."""
    rows = frame.iloc[:MAX_ROWS]
    limit = max(MIN_TARGETS, min(MAX_TARGETS, MAX_PAIRS // max(len(columns), 1)))
    targets = dict(_targets(rows, limit))
    for name in columns:
        if name in rows and _is_code(rows, name, targets):
            # Rows of the same person, in a table of visits, agree by chance.
            once = _one_row_each(rows, name, targets)
            if once is not None and not _is_code(once, name, dict(_targets(once, limit))):
                continue
            shown = " and ".join(repr(f"{each:.0f}") for each in rows[name].dropna().unique()[:2])
            yield (
                name,
                f"integers such as {shown} look like codes, such as the number of a school: the "
                "means of other columns differ as much between neighboring numbers as between any "
                f"two{SET_CATEGORY}",
            )


def _is_code(rows: pd.DataFrame, name: str, targets: Mapping[str, Floats]) -> bool:
    """Tell whether a column looks like codes."""
    found = _codes(rows[name])
    if found is None:
        return False
    numbers, held = found
    others = [each[held] for other, each in targets.items() if other != name]
    measured = [_roughness(numbers, each) for each in others]
    rough = [roughness for signal, roughness in measured if signal >= MIN_SIGNAL]
    if not rough or np.median(rough) < MIN_ROUGHNESS:
        return False
    ranks = pd.DataFrame(np.transpose([numbers, *others])).rank()
    correlations = ranks.corrwith(ranks[0]).iloc[1:].abs()
    return bool(correlations.max() < MAX_RANK_CORRELATION)


def _one_row_each(
    rows: pd.DataFrame, name: str, targets: Mapping[str, Floats]
) -> pd.DataFrame | None:
    """Return one row for each person, say, whose rows all have the same number; None if unknown."""
    numbers = rows[name].nunique()
    singles = ([each] for each in rows.columns if each != name)
    pairs = (list(each) for each in combinations(targets, 2) if name not in each)
    for key in chain(singles, pairs):
        once = rows.drop_duplicates(key)
        repeated = numbers < len(once) <= len(rows) / 2
        if repeated and len(rows.drop_duplicates([*key, name])) == len(once):
            return once
    return None


def _codes(cells: pd.Series) -> tuple[Ints, NDArray[np.bool_]] | None:
    """Return the place of each observed integer among the distinct ones, and which are observed."""
    if not types.is_numeric_dtype(cells.dtype) or types.is_bool_dtype(cells.dtype):
        return None
    values = cells.to_numpy(dtype=np.float64, na_value=np.nan)
    held = np.isfinite(values)
    if (np.trunc(values[held]) != values[held]).any():
        return None
    distinct, places, counts = np.unique(values[held], return_inverse=True, return_counts=True)
    enough = counts >= MIN_ROWS_PER_CODE
    if not MIN_CODES <= enough.sum() <= MAX_CODES:
        return None
    digits = np.char.str_len(np.abs(distinct).astype(np.int64).astype(str))
    scattered = np.ptp(distinct) > MAX_GAP * len(distinct) and np.ptp(digits) > 0
    if scattered or counts.max() > MAX_SHARE * len(places):
        return None
    held[held] = enough[places]
    return (np.cumsum(enough) - 1)[places[enough[places]]], held


def _targets(rows: pd.DataFrame, limit: int) -> Iterator[tuple[str, Floats]]:
    """Yield up to `limit` columns as numbers: ranks, or whether it is the first value."""
    count = 0
    for name in rows.columns:
        cells = rows[name]
        if count == limit:
            return
        if types.is_numeric_dtype(cells.dtype):
            ranks = cells.rank().to_numpy(dtype=np.float64, na_value=np.nan)
            values: Floats = np.asarray(ranks, dtype=np.float64)
        else:
            codes, distinct = pd.factorize(cells)
            if len(distinct) > MAX_VALUES:
                continue
            values = np.where(codes < 0, np.nan, codes == 0).astype(np.float64)
        present = values[np.isfinite(values)]
        if len(present) and np.ptp(present) > 0:
            count += 1
            yield str(name), values


def _roughness(codes: Ints, target: Floats) -> tuple[float, float]:
    """Return the signal of a column's means by code, and how much neighboring means differ."""
    held = np.isfinite(target)
    codes, values = codes[held], target[held]
    counts = np.bincount(codes)
    if len(counts) < MIN_CODES or (counts < 2).any():
        return 0.0, 0.0
    means = np.bincount(codes, values) / counts
    noise = float(np.square(values - means[codes]).sum()) / (len(values) - len(counts))
    spread = float(means.var(ddof=1))
    if not spread > 0:
        return 0.0, 0.0
    roughness = float(np.square(np.diff(means)).mean()) / (2 * spread)
    return spread / max(noise * float((1 / counts).mean()), 1e-12), roughness
