"""Columns of a table: each encodes its cell of a row, and decodes completed values.

A cell is a JSON value, a text of a CSV file, or a date or duration of a Parquet file.
"""

import hashlib
import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any, Literal

from xvfl_serve.encoding.dates import EPOCH, ISO, parse_date, read_zone
from xvfl_serve.encoding.number_text import parse_duration, parse_number
from xvfl_serve.errors import BundleError, RequestError, unknown

MAX_MAGNITUDE = 1e300
"""Larger numbers count as infinite."""
MAX_INTEGER = 2.0**63
"""Smaller integral floats are written as integers."""
DAY = 86_400

NoteKind = Literal["range", "unseen", "date", "duration", "pixels"]
Notes = list[tuple[NoteKind, str]]
"""Unusual cells: what is unusual, and the column's name."""
NOTES: dict[NoteKind, str] = {
    "range": "{} far outside the training range",
    "unseen": "unseen category in {}",
    "date": "unreadable date in {}",
    "duration": "unreadable duration in {}",
    "pixels": "pixels far outside the training range",
}


class Scale:
    """A piecewise linear map to [0, 1]; values outside its knots are clipped."""

    def __init__(self, knots: Sequence[float], scaled_knots: Sequence[float]) -> None:
        self.knots, self.scaled = list(knots), list(scaled_knots)
        span = self.knots[-1] - self.knots[0]
        self.low, self.high = self.knots[0] - span, self.knots[-1] + span
        """Values outside these bounds are noted."""

    def apply(self, value: float) -> float:
        """Map a value to [0, 1]."""
        return _interpolate(value, self.knots, self.scaled)

    def invert(self, scaled: float) -> float:
        """Map [0, 1] back to the column's units."""
        return _interpolate(scaled, self.scaled, self.knots)


class NumberColumn:
    """A number, scaled to [0, 1]."""

    kind = "number"
    width = 1
    json_type = ("number", "string")

    def __init__(self, data: Mapping[str, Any], na_numbers: frozenset[float]) -> None:
        self.name, self.decimal, self.whole = data["name"], data["decimal"], data["whole"]
        self.prefix, self.suffix = data["prefix"], data["suffix"]
        self.scale, self.na_numbers = _scale(data), na_numbers

    def encode(self, cell: Any, notes: Notes) -> Sequence[float] | None:
        """Scale a number; None if it counts as missing."""
        kind = type(cell)
        if kind is float or kind is int:
            number = float(cell) if abs(cell) <= MAX_MAGNITUDE else math.inf
        elif kind is str:
            parsed = parse_number(cell.strip(), self.decimal)
            if parsed is None:
                raise _wrong_type(self.name, "a number", cell)
            number = parsed
        else:
            raise _wrong_type(self.name, "a number", cell)
        if not abs(number) <= MAX_MAGNITUDE:
            raise _wrong_type(self.name, "a finite number", cell)
        if number in self.na_numbers:
            return None
        return (_scaled(self.scale, number, self.name, notes),)

    def decode(self, values: Sequence[float]) -> Any:
        """Invert the scaling; round if the training values were integers."""
        number = self.scale.invert(values[0])
        plain: int | float = round(number) if self.whole else number
        if not self.decimal:
            return plain
        # Amounts of a currency have two decimals.
        money = not self.whole and (self.prefix or self.suffix not in ("", "%"))
        text = f"{number:.2f}" if money else str(plain if self.whole else round(number, 6))
        return self.prefix + text.replace(".", self.decimal) + self.suffix


class DurationColumn:
    """A duration: its seconds, scaled to [0, 1]."""

    kind = "duration"
    width = 1
    json_type = ("string",)

    def __init__(self, data: Mapping[str, Any], na_numbers: frozenset[float]) -> None:
        self.name, self.scale = data["name"], _scale(data)

    def encode(self, cell: Any, notes: Notes) -> Sequence[float] | None:
        """Scale the seconds; a text that is no duration counts as missing."""
        if isinstance(cell, timedelta):
            seconds: float | None = cell.total_seconds()
        elif isinstance(cell, str):
            seconds = parse_duration(cell.strip())
        else:
            raise _wrong_type(self.name, "a duration such as '1:30:00' or '90 min'", cell)
        if seconds is None:
            notes.append(("duration", self.name))
            return None
        return (_scaled(self.scale, seconds, self.name, notes),)

    def decode(self, values: Sequence[float]) -> Any:
        """Return a text such as "1:30:00"."""
        seconds = round(self.scale.invert(values[0]))
        return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


class DateColumn:
    """A date: time scaled to [0, 1]; weekday, day of year and time of day as sine and cosine."""

    kind = "date"
    json_type = ("string",)

    def __init__(self, data: Mapping[str, Any], na_numbers: frozenset[float]) -> None:
        self.name, self.scale, self.has_time = data["name"], _scale(data), data["has_time"]
        self.format, self.zone = data["format"], read_zone(data["zone"])
        self.width = 7 if self.has_time else 5

    def encode(self, cell: Any, notes: Notes) -> Sequence[float] | None:
        """Encode a date; a text that is no date counts as missing."""
        if isinstance(cell, bool) or not isinstance(cell, str | int | float | date | datetime):
            raise _wrong_type(self.name, "a date such as '2026-01-31'", cell)
        moment = parse_date(text_of(cell) if isinstance(cell, float) else cell, self.format)
        if moment is None:
            notes.append(("date", self.name))
            return None
        seconds = (moment - EPOCH).total_seconds()
        local = moment.astimezone(self.zone)
        phases = [local.weekday() / 7, (local.timetuple().tm_yday - 1) / 365.25]
        if self.has_time:
            phases.append((local.hour * 3600 + local.minute * 60 + local.second) / DAY)
        values = [_scaled(self.scale, seconds, self.name, notes)]
        for phase in phases:
            angle = 2 * math.pi * phase
            values += [(math.sin(angle) + 1) / 2, (math.cos(angle) + 1) / 2]
        return values

    def decode(self, values: Sequence[float]) -> Any:
        """Return the date as text, in the column's format."""
        step = 1 if self.has_time else DAY
        seconds = round(self.scale.invert(values[0]) / step) * step
        moment = (EPOCH + timedelta(seconds=seconds)).astimezone(self.zone)
        if self.format != ISO:
            return moment.strftime(self.format)
        return moment.replace(tzinfo=None).isoformat() if self.has_time else str(moment.date())


class CategoryColumn:
    """A category with few values: a one-hot group."""

    kind = "category"
    json_type = ("string", "number", "boolean")

    def __init__(self, data: Mapping[str, Any], na_numbers: frozenset[float]) -> None:
        self.name, self.values, self.type = data["name"], data["values"], data["type"]
        self.width = len(self.values)
        self._groups = {
            text: tuple(float(i == at) for i in range(self.width))
            for at, text in enumerate(self.values)
        }

    def encode(self, cell: Any, notes: Notes) -> Sequence[float] | None:
        """One-hot encode; a value not in the training rows counts as missing."""
        group = self._groups.get(category_text(cell, self.name, self.type, self._groups))
        if group is None:
            notes.append(("unseen", self.name))
        return group

    def decode(self, values: Sequence[float]) -> Any:
        """Return the value with the largest number of the group."""
        return restore_type(self.values[max(range(self.width), key=values.__getitem__)], self.type)


class HashedColumn:
    """A category with many values: hash buckets with learned embeddings; code 0 for rare values."""

    kind = "hashed"
    json_type = ("string", "number", "boolean")

    def __init__(self, data: Mapping[str, Any], na_numbers: frozenset[float]) -> None:
        self.name, self.type, self.buckets = data["name"], data["type"], data["buckets"]
        self.width = data["width"]
        self.vocabulary = data["vocabulary"]
        self._codes = {bucket: 1 + at for at, bucket in enumerate(data["frequent"])}
        self._known = frozenset(self.vocabulary) if data["complete"] else None

    def encode(self, cell: Any, notes: Notes) -> int:
        """Hash the value; code 0 if it is rare or unseen."""
        text = category_text(cell, self.name, self.type, self._known or ())
        if self._known is not None and text not in self._known:
            notes.append(("unseen", self.name))
        digest = hashlib.blake2b(text.encode(errors="replace"), digest_size=8).digest()
        return self._codes.get(int.from_bytes(digest, "big") % self.buckets, 0)

    def decode(self, word: int) -> Any:
        """Return a value of the vocabulary."""
        return restore_type(self.vocabulary[word], self.type)


DenseColumn = NumberColumn | DurationColumn | DateColumn | CategoryColumn
Column = DenseColumn | HashedColumn
COLUMNS: dict[str, Callable[[Mapping[str, Any], frozenset[float]], Column]] = {
    "number": NumberColumn,
    "duration": DurationColumn,
    "date": DateColumn,
    "category": CategoryColumn,
    "hashed": HashedColumn,
}
"""Columns by the name of their codec in the encoder's JSON form."""


def build_column(data: Mapping[str, Any], na_numbers: frozenset[float]) -> Column:
    """Build a column from the JSON form of its codec."""
    if data["codec"] not in COLUMNS:
        raise BundleError(unknown("kind of column", str(data["codec"]), COLUMNS))
    return COLUMNS[data["codec"]](data, na_numbers)


def text_of(cell: Any) -> str:
    """Return the text of a value: 7, 7.0 and "7" all become "7"."""
    if isinstance(cell, float) and cell.is_integer() and abs(cell) < MAX_INTEGER:
        return str(int(cell))
    return str(cell)


def category_text(cell: Any, name: str, kind: str, known: Any) -> str:
    """Return the text of a category's value, as the training values were written."""
    if type(cell) is not str:
        if not isinstance(cell, str | bool | int | float | date | timedelta):
            raise _wrong_type(name, "a text, number or boolean", cell)
        return text_of(cell)
    if kind == "str" or cell in known:
        return cell
    plain = cell.strip()
    if kind == "bool":
        return plain.capitalize()
    number = parse_number(plain)
    return cell if number is None else text_of(number)


def restore_type(text: str, kind: str) -> Any:
    """Return a category's value in the type of the training column."""
    if kind == "bool":
        return text == "True"
    return {"int": int, "float": float}.get(kind, str)(text)


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
        return False


def _interpolate(x: float, knots: list[float], values: list[float]) -> float:
    if x <= knots[0]:
        return values[0]
    if x >= knots[-1]:
        return values[-1]
    at = bisect_right(knots, x) - 1
    slope = (values[at + 1] - values[at]) / (knots[at + 1] - knots[at])
    return slope * (x - knots[at]) + values[at]


def _scaled(scale: Scale, value: float, name: str, notes: Notes) -> float:
    if value < scale.low or value > scale.high:
        notes.append(("range", name))
    return scale.apply(value)


def _scale(data: Mapping[str, Any]) -> Scale:
    return Scale(data["scale"]["knots"], data["scale"]["scaled_knots"])


def _wrong_type(name: str, expected: str, cell: Any) -> RequestError:
    shown = repr(cell) if len(repr(cell)) <= 80 else repr(cell)[:77] + "..."
    return RequestError(
        f"column {name!r}: expected {expected}, got {shown}; correct it, or leave it out (null) "
        "where it is missing",
        name,
    )
