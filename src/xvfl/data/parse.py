"""Read a column's cells as what they stand for: numbers, dates or text; and tell these apart."""

import warnings
from collections.abc import Sequence
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types
from pandas.tseries.api import guess_datetime_format

from xvfl.data.text import as_text
from xvfl.errors import InputError

ColumnKind = Literal["number", "date", "category"]

ISO = "ISO8601"
MOSTLY = 0.95
"""Share of a text column's cells that must read as dates for it to be one."""

LARGEST = 1e300
"""Numbers beyond this count as infinite: the width of their range would be."""


WHERE = "where"
"""Under this name a frame carries whose it is and which file it came from, for messages."""


def whose(table: pd.DataFrame | pd.Series, party: str) -> str:
    """Say whose table it is and, where known, which file."""
    return str(table.attrs.get(WHERE, f"party {party!r}"))


def blank(cells: pd.Series, missing: Sequence[str]) -> pd.Series:
    """Empty the cells that hold no text or one of the given values; numbers compare as numbers."""
    if types.is_bool_dtype(cells.dtype) or types.is_datetime64_any_dtype(cells.dtype):
        return cells
    if types.is_numeric_dtype(cells.dtype):
        if not missing:
            return cells
        marks = pd.to_numeric(pd.Series(list(missing)), errors="coerce").dropna().tolist()
        return cells.mask(cells.isin(marks))
    there, texts = known(cells)
    hit = np.zeros(len(cells), dtype=bool)
    hit[there] = texts.str.strip().isin(["", *(mark.strip() for mark in missing)])
    return cells.mask(hit) if hit.any() else cells


def known(cells: pd.Series) -> tuple[NDArray[np.bool_], pd.Series]:
    """Say which cells are there, and give the text of those alone."""
    there = cells.notna().to_numpy(dtype=bool)
    return there, as_text(cells[there])


def kind_of(cells: pd.Series) -> ColumnKind:
    """Tell what a training column holds."""
    if types.is_bool_dtype(cells.dtype) or isinstance(cells.dtype, pd.CategoricalDtype):
        return "category"
    if types.is_numeric_dtype(cells.dtype):
        return "number"
    if types.is_datetime64_any_dtype(cells.dtype):
        return "date"
    _, texts = known(cells)
    if types.infer_dtype(cells, skipna=True) == "boolean" or texts.empty:
        return "category"
    stripped = texts.str.strip()
    if not np.isnan(_parse(stripped[stripped != ""])).any() and (stripped != "").any():
        return "number"
    return "category" if date_format(cells) is None else "date"


def as_numbers(cells: pd.Series, party: str) -> NDArray[np.float64]:
    """Read cells as finite numbers, NaN where missing, or say which cell is not one."""
    if types.is_numeric_dtype(cells.dtype):
        numbers = cells.to_numpy(dtype=np.float64, na_value=np.nan)
        unreadable = np.zeros(len(cells), dtype=bool)
    else:
        there, texts = known(cells)
        stripped = texts.str.strip()
        numbers = np.full(len(cells), np.nan)
        numbers[there] = _parse(stripped)
        unreadable = np.isnan(numbers)
        unreadable[there] &= (stripped != "").to_numpy(dtype=bool)
        unreadable[~there] = False
    _refuse(cells, unreadable, party, "correct it, leave it empty, or name it under missing values")
    _refuse(cells, np.abs(numbers) > LARGEST, party, "replace by a number or leave empty")
    return numbers


def date_format(cells: pd.Series) -> str | None:
    """Find the one format in which nearly all cells read as dates, if there is one."""
    if types.is_datetime64_any_dtype(cells.dtype):
        return ISO
    _, texts = known(cells)
    if texts.empty or texts.str.contains("[-/:]").mean() < MOSTLY:
        return None
    for guess in date_guesses(texts.iloc[0]):
        if as_dates(texts, guess).notna().mean() >= MOSTLY:
            return guess
    return None


def date_guesses(text: str) -> list[str]:
    """List the formats in which a text may be a date, the likeliest first."""
    with warnings.catch_warnings():
        # Both readings of 02/01/2020 are tried on purpose.
        warnings.simplefilter("ignore", UserWarning)
        guesses = [ISO, guess_datetime_format(text), guess_datetime_format(text, dayfirst=True)]
    return [each for each in dict.fromkeys(guesses) if each is not None]


def as_dates(cells: pd.Series, form: str) -> pd.Series:
    """Read cells as UTC dates, NaT where missing or unreadable; no time zone means UTC."""
    if types.is_datetime64_any_dtype(cells.dtype):
        return pd.to_datetime(cells, utc=True)
    there, texts = known(cells)
    full = pd.Series(np.nan, index=cells.index, dtype="str")
    full[there] = texts.str.strip().array
    return pd.to_datetime(full, format=form, utc=True, errors="coerce")


def _parse(texts: pd.Series) -> NDArray[np.float64]:
    return pd.to_numeric(texts, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)


def _refuse(cells: pd.Series, bad: NDArray[np.bool_], party: str, remedy: str) -> None:
    if bad.any():
        at = int(np.argmax(bad))
        first = f"first {str(cells.iloc[at])!r} in row {str(cells.index[at])!r}"
        raise InputError(
            f"{whose(cells, party)}, column {cells.name!r}: expected finite numbers, but "
            f"{bad.sum()} cells are not, {first}; {remedy}"
        )
