"""Parse a column's cells as numbers, durations, dates or text, many at a time.

The functions of one cell in `xvfl_serve.encoding` say what a cell means. Each distinct text is
parsed once; the usual forms of numbers, durations and dates are parsed by pyarrow and pandas.
Shapes: n cells; NaN where missing or unreadable.
"""

import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pandas.api import types
from pandas.tseries.api import guess_datetime_format

from xvfl.data.text import as_text, is_text, without_categories
from xvfl.errors import InputError
from xvfl_serve.encoding.cells import MissingCells
from xvfl_serve.encoding.columns import MAX_MAGNITUDE, read_duration, read_number
from xvfl_serve.encoding.dates import FIRST, ISO, LAST, parse_date
from xvfl_serve.encoding.number_text import COMMA, POINT, parse_duration, parse_number

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
DATE_LIKE = r"[-/:]|^\s*\d{1,2}\.\d{1,2}\.\d{2,4}"
"""Found in every text that is a date."""
MIN_DATE_FRACTION = 0.95
"""Fraction of a text column's cells that must parse as dates for a date column."""
WHERE = "where"
"""Key of `DataFrame.attrs` with the party and file of a table, for messages."""
NOTHING_MISSING = MissingCells.of(())

_PLAIN_NUMBERS = {
    "": r"^-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]{1,2})?$",
    POINT: r"^-?[$€£¥]?([0-9]+|[1-9][0-9]{0,2}(,[0-9]{3})+)(\.[0-9]+)? ?[$€£¥%]?$",
    COMMA: r"^-?[$€£¥]?([0-9]+|[1-9][0-9]{0,2}(\.[0-9]{3})+)(,[0-9]+)? ?[$€£¥%]?$",
}
"""Numbers that pyarrow reads, by decimal mark."""
_SIGNS = {POINT: "[$€£¥% ,]", COMMA: "[$€£¥% .]"}
"""What is removed from them first."""
_MAX_PLAIN = 40
"""Longer numbers may be infinite, which pyarrow rejects."""
_PLAIN_CLOCK = r"^(?P<hours>[0-9]{1,9}):(?P<minutes>[0-5][0-9])(?::(?P<seconds>[0-5][0-9]))?$"
_PLAIN_ISO = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?)?$"
_MAYBE_ISO = r"^[0-9]{4}([-/. T]|[0-9]{4}|$)"
"""Found in every text that is a date of ISO 8601."""
_FIXED_DIRECTIVES = {"%Y": "[0-9]{4}"} | dict.fromkeys(
    ("%m", "%d", "%H", "%M", "%S", "%y"), "[0-9]{2}"
)
"""Directives that pandas reads as `datetime.strptime` if all their digits are there."""


def describe_table(table: pd.DataFrame | pd.Series, party: str) -> str:
    """Return the party of a table and, if known, its file, for messages."""
    return str(table.attrs.get(WHERE, f"party {party!r}"))


def mask_missing(cells: pd.Series, missing: MissingCells) -> pd.Series:
    """Replace cells that count as missing by NA; numbers compare as numbers."""
    plain = without_categories(cells)
    if types.is_bool_dtype(plain.dtype) or plain.dtype.kind in "mM":
        return cells
    if types.is_numeric_dtype(plain.dtype):
        hit = plain.isin(missing.numbers).to_numpy(dtype=bool) if missing.numbers else None
    elif is_text(plain):
        hit = plain.str.strip().isin(missing.texts).to_numpy(dtype=bool)
    else:
        hit = np.fromiter((item in missing for item in plain), dtype=bool, count=len(plain))
    return cells if hit is None or not hit.any() else cells.mask(hit)


def is_plain_number(cells: pd.Series) -> bool:
    """Tell whether the cells are numbers of numpy, of which NaN alone is missing."""
    return isinstance(cells.dtype, np.dtype) and cells.dtype.kind in "fiu"


def present_cells(cells: pd.Series) -> Bools:
    """Return which cells are not missing. (n,)

    Of plain numbers without pandas' checks, which take most of the time in wide tables.
    """
    if is_plain_number(cells):
        present: Bools = ~np.isnan(cells.to_numpy())
        return present
    return cells.notna().to_numpy(dtype=bool)


def observed_text(cells: pd.Series) -> tuple[Bools, pd.Series]:
    """Return which cells are not missing, and the text of those."""
    observed = present_cells(cells)
    return observed, as_text(cells[observed])


def parse_numbers(
    cells: pd.Series, party: str, decimal: str = "", missing: MissingCells = NOTHING_MISSING
) -> Floats:
    """Parse cells as finite numbers, NaN where missing; raise if a cell is not a number. (n,)

    With a decimal mark, texts may have thousands separators, a currency or a percent sign.
    """
    numbers = read_numbers(cells, party, decimal)
    if not is_plain_number(cells):
        unreadable = present_cells(cells) & np.isnan(numbers)
        _reject(cells, unreadable, party, "correct it, leave it empty, or add it to `na_values`")
    _reject(cells, np.abs(numbers) > MAX_MAGNITUDE, party, "replace by a number or leave empty")
    return mask_missing_numbers(numbers, missing)


def read_numbers(cells: pd.Series, party: str, decimal: str = "") -> Floats:
    """Parse cells as numbers, NaN where missing or unreadable. (n,)"""
    cells = without_categories(cells)
    if types.is_numeric_dtype(cells.dtype):
        numbers: Floats = cells.to_numpy(dtype=np.float64, na_value=np.nan)
        return numbers
    return _parse(
        cells,
        party,
        lambda texts: parse_number_texts(texts, decimal),
        lambda cell: read_number(cell, decimal),
    )


def mask_missing_numbers(numbers: Floats, missing: MissingCells) -> Floats:
    """Replace numbers that count as missing by NaN."""
    if not missing.numbers:
        return numbers
    return np.where(np.isin(numbers, list(missing.numbers)), np.nan, numbers)


def parse_number_texts(texts: pd.Series, decimal: str) -> Floats:
    """Parse texts as numbers; NaN where a text is not a number. (n,)"""
    words = pc.ascii_trim_whitespace(_arrow(texts))
    short = pc.less_equal(pc.binary_length(words), _MAX_PLAIN)
    plain = pc.and_(pc.match_substring_regex(words, _PLAIN_NUMBERS[decimal]), short)
    chosen = words.filter(plain)
    if decimal:
        chosen = pc.replace_substring_regex(chosen, _SIGNS[decimal], "")
        chosen = pc.replace_substring(chosen, decimal, POINT)
    at = np.asarray(plain, dtype=bool)
    numbers = np.empty(len(texts))
    numbers[at] = chosen.cast(pa.float64())
    numbers[~at] = _parse_each(texts[~at], lambda text: parse_number(text, decimal))
    return numbers


def parse_durations(cells: pd.Series, party: str) -> Floats:
    """Parse cells as seconds, NaN where missing, unreadable or without a unit. (n,)"""
    cells = without_categories(cells)
    if cells.dtype.kind == "m":
        return _to_seconds(cells.to_numpy(dtype="timedelta64[us]"))
    if types.is_numeric_dtype(cells.dtype) and not types.is_bool_dtype(cells.dtype):
        return np.full(len(cells), np.nan)
    return _parse(cells, party, parse_duration_texts, read_duration)


def parse_duration_texts(texts: pd.Series) -> Floats:
    """Parse texts as seconds, NaN where unreadable or without a unit. (n,)"""
    parts = pc.extract_regex(_arrow(texts), _PLAIN_CLOCK)
    at = np.asarray(parts.is_valid(), dtype=bool)
    clocks = parts.filter(parts.is_valid())
    hours, minutes, seconds = (
        np.asarray(pc.if_else(pc.equal(each, ""), "0", each).cast(pa.int64()))
        for each in (clocks.field(i) for i in range(3))
    )
    values = np.empty(len(texts))
    values[at] = hours * 3600 + minutes * 60 + seconds
    values[~at] = _parse_each(texts[~at], parse_duration)
    return values


def parse_dates(cells: pd.Series, date_format: str, party: str) -> Floats:
    """Parse cells as seconds since 1970, NaN where missing or unreadable. (n,)

    No time zone means UTC.
    """
    cells = without_categories(cells)
    if types.is_datetime64_any_dtype(cells.dtype):
        utc = pd.to_datetime(cells, utc=True).dt.tz_localize(None)
        return _readable(_to_seconds(utc.to_numpy(dtype="datetime64[us]")))
    if types.is_numeric_dtype(cells.dtype) and not types.is_bool_dtype(cells.dtype):
        observed, texts = observed_text(cells)
        cells = pd.Series(pd.NA, index=cells.index, dtype="str")
        cells[observed] = texts.array
    return _parse(
        cells,
        party,
        lambda texts: _parse_distinct(texts, date_format),
        lambda cell: parse_date(cell, date_format),
    )


def parse_date_texts(texts: pd.Series, date_format: str) -> Floats:
    """Parse distinct texts as seconds since 1970, NaN where unreadable. (n,)"""
    words = texts.str.strip().reset_index(drop=True)
    plain = np.zeros(len(words), dtype=bool)
    if (pattern := _plain_date(date_format)) is not None:
        plain = np.asarray(pc.match_substring_regex(_arrow(words), pattern), dtype=bool)
    seconds = np.full(len(words), np.nan)
    dates = pd.to_datetime(words[plain], format=date_format, utc=True, errors="coerce", cache=False)
    seconds[plain] = parse_dates(dates, ISO, "")
    other = ~plain
    if date_format == ISO:
        other &= np.asarray(pc.match_substring_regex(_arrow(words), _MAYBE_ISO), dtype=bool)
    seconds[other] = _parse_each(words[other], lambda text: parse_date(text, date_format))
    return seconds


def local_seconds(seconds: Floats, zone: str) -> Floats:
    """Convert seconds since 1970 to the clock of a time zone, in whole seconds. (n,)"""
    observed = ~np.isnan(seconds)
    whole = np.floor(np.where(observed, seconds, 0.0)).astype(np.int64)
    utc = pd.Series(whole.astype("datetime64[s]")).dt.tz_localize("UTC")
    local = utc.dt.tz_convert(zone).dt.tz_localize(None).to_numpy(dtype="datetime64[s]")
    return np.where(observed, local.astype(np.int64), np.nan)


def candidate_date_formats(text: str) -> list[str]:
    """List the formats in which a text may be a date, the most likely first."""
    with warnings.catch_warnings():
        # Both interpretations of 02/01/2020 are candidates.
        warnings.simplefilter("ignore", UserWarning)
        formats = [ISO, guess_datetime_format(text), guess_datetime_format(text, dayfirst=True)]
    return [each for each in dict.fromkeys(formats) if each is not None]


def _parse(
    cells: pd.Series,
    party: str,
    of_texts: Callable[[pd.Series], Floats],
    of_cell: Callable[[Any], float | None],
) -> Floats:
    """Parse the texts of a column at once, and its other values one by one."""
    values = np.full(len(cells), np.nan)
    texts = observed = cells.notna().to_numpy(dtype=bool)
    if not is_text(cells):
        kinds = (type(item) is str for item in cells)
        texts = observed & np.fromiter(kinds, dtype=bool, count=len(cells))
    values[texts] = of_texts(cells[texts].astype("str"))
    for at in np.flatnonzero(observed & ~texts).tolist():
        try:
            value = of_cell(cells.iloc[at])
        except TypeError as error:
            raise InputError(
                f"{describe_table(cells, party)}, column {cells.name!r}: {error}: "
                f"{str(cells.iloc[at])[:80]!r} in row {str(cells.index[at])!r}; correct it or "
                "leave it empty"
            ) from error
        values[at] = np.nan if value is None else value
    return values


def _parse_each(texts: pd.Series, parse: Callable[[str], float | None]) -> Floats:
    """Parse each distinct text by a function of one text."""
    codes, distinct = pd.factorize(texts)
    parsed = (parse(text) for text in distinct)
    values = np.array([np.nan if each is None else each for each in parsed], dtype=np.float64)
    found: Floats = values[codes]
    return found


def _parse_distinct(texts: pd.Series, date_format: str) -> Floats:
    codes, distinct = pd.factorize(texts)
    seconds: Floats = parse_date_texts(pd.Series(distinct, dtype="str"), date_format)[codes]
    return seconds


def _plain_date(date_format: str) -> str | None:
    """Return a pattern of the dates that pandas reads in this format; None if there is none."""
    if date_format == ISO:
        return _PLAIN_ISO
    parts = re.findall(r"%.|[^%]+", date_format)
    if any(part[0] == "%" and part not in _FIXED_DIRECTIVES for part in parts):
        return None
    return "^" + "".join(_FIXED_DIRECTIVES.get(part) or re.escape(part) for part in parts) + "$"


def _arrow(texts: pd.Series) -> Any:
    array = pa.array(texts.astype("str"), from_pandas=True)
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _to_seconds(microseconds: NDArray[Any]) -> Floats:
    """Convert dates or durations in microseconds to seconds, NaN where missing."""
    return np.where(np.isnat(microseconds), np.nan, microseconds.astype(np.int64) / 1e6)


def _readable(seconds: Floats) -> Floats:
    return np.where((seconds >= FIRST) & (seconds < LAST), seconds, np.nan)


def _reject(cells: pd.Series, bad: Bools, party: str, remedy: str) -> None:
    if bad.any():
        at = int(np.argmax(bad))
        first = f"first {str(cells.iloc[at])!r} in row {str(cells.index[at])!r}"
        raise InputError(
            f"{describe_table(cells, party)}, column {cells.name!r}: expected finite numbers, but "
            f"{bad.sum()} cells are not, {first}; {remedy}"
        )
