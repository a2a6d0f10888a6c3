"""Parse a column's cells as numbers, dates or text."""

import warnings
from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types
from pandas.tseries.api import guess_datetime_format

from xvfl.data.number_text import parse_number_texts
from xvfl.data.text import as_text
from xvfl.errors import InputError

ISO = "ISO8601"
DATE_LIKE = r"[-/:]|^\s*\d{1,2}\.\d{1,2}\.\d{2,4}"
"""Found in every text that is a date."""
MIN_DATE_FRACTION = 0.95
"""Fraction of a text column's cells that must parse as dates for a date column."""
NA_TEXTS = (
    *("#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN"),
    *("<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"),
)
"""Texts that count as missing in every source, as in `pandas.read_csv`; empty texts do, too."""
MAX_MAGNITUDE = 1e300
"""Larger numbers count as infinite: their range would overflow."""
WHERE = "where"
"""Key of `DataFrame.attrs` with the party and file of a table, for messages."""


def describe_table(table: pd.DataFrame | pd.Series, party: str) -> str:
    """Return the party of a table and, if known, its file, for messages."""
    return str(table.attrs.get(WHERE, f"party {party!r}"))


def mask_missing(cells: pd.Series, na_values: Sequence[str]) -> pd.Series:
    """Replace empty texts and `na_values` by NA; numbers compare as numbers."""
    if types.is_bool_dtype(cells.dtype) or cells.dtype.kind in "mM":
        return cells
    if types.is_numeric_dtype(cells.dtype):
        numbers = pd.to_numeric(pd.Series(list(na_values), dtype="str"), errors="coerce")
        marks = numbers.dropna().tolist()
        return cells.mask(cells.isin(marks)) if marks else cells
    observed, texts = observed_text(cells)
    hit = np.zeros(len(cells), dtype=bool)
    hit[observed] = texts.str.strip().isin(["", *(mark.strip() for mark in na_values)])
    return cells.mask(hit) if hit.any() else cells


def observed_text(cells: pd.Series) -> tuple[NDArray[np.bool_], pd.Series]:
    """Return which cells are not missing, and the text of those."""
    observed = cells.notna().to_numpy(dtype=bool)
    return observed, as_text(cells[observed])


def parse_numbers(cells: pd.Series, party: str, decimal: str = "") -> NDArray[np.float64]:
    """Parse cells as finite numbers, NaN where missing; raise if a cell is not a number.

    With a decimal mark, texts may have thousands separators, a currency or a percent sign.
    """
    numbers, unreadable = np.full(len(cells), np.nan), np.zeros(len(cells), dtype=bool)
    if types.is_numeric_dtype(cells.dtype):
        numbers = cells.to_numpy(dtype=np.float64, na_value=np.nan)
    else:
        observed, texts = observed_text(cells)
        texts = texts.str.strip()
        if decimal:
            parsed = pd.Series(parse_number_texts(texts, decimal), index=texts.index)
        else:
            parsed = pd.to_numeric(texts, errors="coerce")
        numbers[observed] = parsed.to_numpy(dtype=np.float64, na_value=np.nan)
        unreadable[observed] = (parsed.isna() & (texts != "")).to_numpy(dtype=bool)
    _reject(cells, unreadable, party, "correct it, leave it empty, or add it to `na_values`")
    _reject(cells, np.abs(numbers) > MAX_MAGNITUDE, party, "replace by a number or leave empty")
    return numbers


def candidate_date_formats(text: str) -> list[str]:
    """List the formats in which a text may be a date, the most likely first."""
    with warnings.catch_warnings():
        # Both interpretations of 02/01/2020 are candidates.
        warnings.simplefilter("ignore", UserWarning)
        formats = [ISO, guess_datetime_format(text), guess_datetime_format(text, dayfirst=True)]
    return [each for each in dict.fromkeys(formats) if each is not None]


def parse_dates(cells: pd.Series, date_format: str) -> pd.Series:
    """Parse cells as UTC dates, NaT where missing or invalid; no time zone means UTC."""
    if types.is_datetime64_any_dtype(cells.dtype):
        return pd.to_datetime(cells, utc=True)
    observed, texts = observed_text(cells)
    full = pd.Series(np.nan, index=cells.index, dtype="str")
    full[observed] = texts.str.strip().array
    return pd.to_datetime(full, format=date_format, utc=True, errors="coerce")


def _reject(cells: pd.Series, bad: NDArray[np.bool_], party: str, remedy: str) -> None:
    if bad.any():
        at = int(np.argmax(bad))
        first = f"first {str(cells.iloc[at])!r} in row {str(cells.index[at])!r}"
        raise InputError(
            f"{describe_table(cells, party)}, column {cells.name!r}: expected finite numbers, but "
            f"{bad.sum()} cells are not, {first}; {remedy}"
        )
