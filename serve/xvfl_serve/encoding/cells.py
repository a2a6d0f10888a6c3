"""The text of a cell, and which cells count as missing."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np

from xvfl_serve.encoding.number_text import parse_number

NA_TEXTS = (
    *("#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN"),
    *("<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"),
)
"""Texts that count as missing in every table, as in `pandas.read_csv`; empty texts do, too."""
MAX_INTEGER = 2.0**63
"""Smaller integral floats are written as integers."""
SCALARS = (str, bool, int, float, date, time, timedelta, Decimal, bytes)
"""Types of a cell, besides the scalars of numpy."""


def plain_value(cell: Any) -> Any:
    """Convert a scalar of numpy to Python; return other values as they are."""
    if not isinstance(cell, np.generic):
        return cell
    if isinstance(cell, np.datetime64 | np.timedelta64):
        unit = "datetime64[us]" if isinstance(cell, np.datetime64) else "timedelta64[us]"
        return cell.astype(unit).item()
    return cell.item()


def text_of(cell: Any) -> str:
    """Return the text of a value: 7, 7.0 and "7" all become "7".

    Raises
    ------
    TypeError
        The cell is a list, an object or another value without a text.
    """
    if type(cell) is str:
        return cell
    value = plain_value(cell)
    if not isinstance(value, SCALARS):
        raise TypeError(f"a {type(cell).__name__} has no text")
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, float) and value.is_integer() and abs(value) < MAX_INTEGER:
        return str(int(value))
    if isinstance(value, datetime) and value.tzinfo is None and value.time() == time():
        return str(value.date())
    return _timedelta_text(value) if isinstance(value, timedelta) else str(value)


@dataclass(frozen=True)
class MissingCells:
    """Which cells count as missing: null, NaN, empty texts, and the listed values."""

    texts: frozenset[str]
    numbers: frozenset[float]

    @classmethod
    def of(cls, na_values: Sequence[str]) -> "MissingCells":
        """Build from the values that count as missing."""
        texts = frozenset(["", *(each.strip() for each in na_values)])
        numbers = (parse_number(each) for each in texts)
        return cls(texts, frozenset(each for each in numbers if each is not None))

    def __contains__(self, cell: Any) -> bool:
        if cell is None:
            return True
        kind = type(cell)
        if kind is str:
            return cell.strip() in self.texts
        if kind is float or kind is int:
            return cell != cell or cell in self.numbers
        if kind is bool:
            return False
        value = plain_value(cell)
        if isinstance(value, bytes):
            return text_of(value).strip() in self.texts
        if isinstance(value, date | timedelta):
            return bool(value != value)
        if isinstance(value, Decimal):
            return value.is_nan() or float(value) in self.numbers
        return value is not cell and value in self


def _timedelta_text(value: timedelta) -> str:
    clock = (datetime.min + value % timedelta(days=1)).time()
    return f"{value.days} days {'+' if value.days < 0 else ''}{clock}"
