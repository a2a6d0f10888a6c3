"""Ids: one per row, not missing, unique, compared as strings without surrounding blanks.

The rules of private id matching (`xvfl.matching.normalize`) remove surrounding blanks too.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from xvfl.data.text import as_text
from xvfl.errors import InputError


def parse_ids(raw: pd.Series, where: str, start: int = 0) -> pd.Index:
    """Convert ids to strings; reject missing and duplicate ids.

    `where` opens the message: party, file and column. `start` is the number of the first of these
    rows in their table.
    """
    raw = raw.reset_index(drop=True)
    complete = bool(raw.notna().all())
    texts = id_texts(raw) if complete else id_texts(raw.dropna()).reindex(raw.index, fill_value="")
    missing = (texts == "").to_numpy(dtype=bool)
    duplicates = texts.duplicated().to_numpy(dtype=bool) & ~missing
    problems = []
    if missing.any():
        problems.append(
            f"{where}: expected an id in every row, but {missing.sum()} of {len(raw)} are missing, "
            f"first in data row {start + int(np.argmax(missing)) + 1}; fill them in or remove "
            "these rows"
        )
    if duplicates.any():
        first = int(np.argmax(duplicates))
        count, row = int(duplicates.sum()), start + first
        problems.append(str(duplicate_ids(where, count, texts.iloc[first], row)))
    if problems:
        raise InputError(*problems)
    ids: pd.Index = pd.Index(texts.array, dtype="str", name="id")
    return ids


def id_texts(ids: Iterable[Any]) -> pd.Series:
    """Convert ids to the strings by which they are compared."""
    raw = ids if isinstance(ids, pd.Series) else pd.Series(list(ids), dtype=object)
    return as_text(raw).str.strip()


def duplicate_ids(where: str, count: int, first: str, row: int) -> InputError:
    """Build the error for `count` duplicate ids, the first of them in `row`."""
    return InputError(
        f"{where}: expected each id once, but {count} rows repeat an earlier id, "
        f"first {first!r} in data row {row + 1}; keep one row per id"
    )


def require_id_column(id_column: str | None, where: str) -> str:
    """Reject a table without an index if no id column is given."""
    if id_column is None:
        raise InputError(
            f"{where}: only a pandas frame has an index to take ids from; name the id column"
        )
    return id_column
