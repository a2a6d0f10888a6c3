"""Find tables that are matched by row number though one of their columns looks like the id.

A pandas frame without an id column takes its ids from its index. If nobody has set one, these are
row numbers, and rows of different people are joined.
"""

from collections.abc import Iterator, Mapping
from itertools import permutations

import numpy as np
import pandas as pd
from pandas.api import types

from xvfl.data.frames import ROW_NUMBERS
from xvfl.data.ids import id_texts
from xvfl.data.near_ids import is_in
from xvfl.data.sources import Source
from xvfl.errors import warn

SAMPLE = 1_000
"""First rows, which show whether a column may be the id."""
MIN_DISTINCT = 0.95
"""Share of distinct values from which a column may be the id."""
MIN_COMMON = 0.5
"""Share of the smaller table whose values must be in the other table too."""
MIN_ROWS = 5
"""Fewer ids that match, or could match, say nothing."""


def warn_row_numbers(tables: Mapping[str, Source]) -> None:
    """Warn if rows are matched by row number, but a column of a table looks like the id.

    The column must match a column of the same name in another table, or the ids of another table.
    """
    frames = {name: table for name, table in tables.items() if isinstance(table, pd.DataFrame)}
    row_numbered = [name for name in frames if frames[name].attrs.get(ROW_NUMBERS)]
    for name, other in permutations(frames, 2):
        both = name in row_numbered and other in row_numbered
        if name not in row_numbered or (
            both and row_numbered.index(other) < row_numbered.index(name)
        ):
            continue
        for column, count in _id_columns(frames[name], frames[other], both):
            where = f"in the column of the same name of party {other!r}"
            warn(
                f"party {name!r}: rows are matched by row number, but {column!r} looks like the "
                f"id: {count:,} of its values are "
                f"{where if both else f'ids of party {other!r}'}, in other rows; use "
                f"table.set_index({column!r}), or id_column={column!r}"
            )


def _id_columns(table: pd.DataFrame, other: pd.DataFrame, both: bool) -> Iterator[tuple[str, int]]:
    """Yield each column that looks like the id, and how many values the other table has too.

    With `both`, the ids of the other table are row numbers as well.
    """
    for column in table.columns:
        if both and column not in other.columns:
            continue
        keys = other[column] if both else other.index.to_series()
        if not (_may_be_id(table[column]) and _may_be_id(keys)):
            continue
        if not (_nearly_distinct(table[column]) and _nearly_distinct(keys)):
            continue
        own, theirs = (id_texts(each.dropna()) for each in (table[column], keys))
        common = int(is_in(pd.Index(own), pd.Index(theirs)).sum())
        # Ids that count rows have many whole numbers of another meaning in common with a column.
        share = 1.0 if not both and _is_integer(keys) else MIN_COMMON
        if common < max(MIN_ROWS, share * min(len(own), len(theirs))):
            continue
        in_same_row = own.reindex(theirs.index).to_numpy(object) == theirs.to_numpy(object)
        if np.count_nonzero(in_same_row) < common / 2:
            yield str(column), common


def _may_be_id(cells: pd.Series) -> bool:
    """Return whether the first cells are nearly all different, and neither fractions nor dates."""
    first = cells.iloc[:SAMPLE].dropna()
    if types.is_float_dtype(first.dtype) and (first % 1 != 0).any():
        return False
    if types.is_bool_dtype(first.dtype) or first.dtype.kind in "mM":
        return False
    return len(first) >= MIN_ROWS and _nearly_distinct(first)


def _nearly_distinct(cells: pd.Series) -> bool:
    cells = cells.dropna()
    try:
        return bool(cells.nunique() >= MIN_DISTINCT * len(cells))
    except TypeError:  # Lists and other cells that have no hash.
        return False


def _is_integer(cells: pd.Series) -> bool:
    numbers = pd.to_numeric(cells.iloc[:SAMPLE].dropna(), errors="coerce")
    return bool(numbers.notna().all() and (numbers % 1 == 0).all())
