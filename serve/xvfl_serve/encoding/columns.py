"""Columns of a table: each encodes one raw feature, a cell at a time or many, and decodes it.

A cell is a JSON value, a text of a CSV file, or a value of a table. Shapes: n cells, w encoded
columns of the feature.
"""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import time, timedelta, tzinfo
from decimal import Decimal
from functools import cached_property
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from xvfl_serve.encoding.cells import MissingCells, plain_value, text_of
from xvfl_serve.encoding.dates import EPOCH, ISO, parse_date, read_zone
from xvfl_serve.encoding.number_text import (
    parse_duration,
    parse_number,
    write_duration,
    write_number,
)
from xvfl_serve.encoding.scale import Floats, Scale, significant
from xvfl_serve.errors import BundleError, RequestError, unknown

Bools = NDArray[np.bool_]
ValueType = Literal["bool", "int", "float", "str"]
MAX_MAGNITUDE = 1e300
"""Larger numbers count as infinite: their range would overflow."""
DAY = 86_400

NoteKind = Literal["absent", "range", "unseen", "date", "duration", "pixels"]
Notes = list[tuple[NoteKind, str]]
"""Unusual cells: what is unusual, and the column's name; of absent columns, the whole text."""
NOTES: dict[NoteKind, str] = {
    "absent": "{}",
    "range": "{} far outside the training range",
    "unseen": "unseen category in {}",
    "date": "unreadable date in {}",
    "duration": "duration without a unit, or unreadable, in {}",
    "pixels": "pixels far outside the training range",
}


@dataclass(frozen=True)
class EncodedColumn:
    """One encoded feature of n rows."""

    values: NDArray[np.float32] | NDArray[np.int64]
    """(n, w) numbers, or (n,) codes of a hashed feature; 0 where not observed."""
    observed: Bools
    """(n,) which cells are not missing."""
    notes: dict[NoteKind, Bools] = field(default_factory=dict)
    """Unusual cells: (n,) masks."""


@dataclass(frozen=True)
class NumberColumn:
    """A number, scaled to [0, 1]."""

    name: str
    scale: Scale
    whole: bool
    """All training values were integers: decode to integers."""
    decimal: str = ""
    """Decimal mark of numbers that are texts, such as "$1,234"; '' for plain numbers."""
    prefix: str = ""
    suffix: str = ""
    """Currency or percent sign of these texts."""
    kind: ClassVar[str] = "number"
    width: ClassVar[int] = 1
    json_type: ClassVar[tuple[str, ...]] = ("number", "string", "boolean")

    def encode_cell(self, cell: Any, missing: MissingCells, notes: Notes) -> Sequence[float] | None:
        """Scale a number; None if it counts as missing.

        Raises
        ------
        RequestError
            The cell is not a finite number.
        """
        try:
            number = read_number(cell, self.decimal)
        except TypeError:
            number = None
        if number is None:
            raise wrong_type(self.name, "a number", cell)
        if not abs(number) <= MAX_MAGNITUDE:
            raise wrong_type(self.name, "a finite number", cell)
        if number in missing.numbers:
            return None
        return (_scale_one(self.scale, number, self.name, notes),)

    def encode_values(self, numbers: Floats) -> EncodedColumn:
        """Scale numbers, NaN where missing. (n,)"""
        return _encode_numbers(self.scale, numbers)

    def decode_cell(self, values: Sequence[float]) -> Any:
        """Invert the scaling; round if the training values were integers."""
        number = self.scale.invert_one(values[0])
        number = number if self.whole else significant(number)
        if not self.decimal:
            return round(number) if self.whole else number
        return write_number(number, self.whole, self.decimal, self.prefix, self.suffix)


@dataclass(frozen=True)
class DurationColumn:
    """A duration: its seconds, scaled to [0, 1]."""

    name: str
    scale: Scale
    text: bool
    """The training values were texts: decode to texts such as "1:30:00"."""
    kind: ClassVar[str] = "duration"
    width: ClassVar[int] = 1
    json_type: ClassVar[tuple[str, ...]] = ("string", "number")

    def encode_cell(self, cell: Any, missing: MissingCells, notes: Notes) -> Sequence[float] | None:
        """Scale the seconds; a cell that is not a duration or has no unit counts as missing."""
        try:
            seconds = read_duration(cell)
        except TypeError as error:
            expected = "a duration such as '1:30:00' or '90 min'"
            raise wrong_type(self.name, expected, cell) from error
        if seconds is None:
            notes.append(("duration", self.name))
            return None
        return (_scale_one(self.scale, seconds, self.name, notes),)

    def encode_values(self, seconds: Floats) -> EncodedColumn:
        """Scale seconds, NaN where missing. (n,)"""
        return _encode_numbers(self.scale, seconds)

    def decode_cell(self, values: Sequence[float]) -> Any:
        """Return a text such as "1:30:00"."""
        return write_duration(self.scale.invert_one(values[0]))


@dataclass(frozen=True)
class DateColumn:
    """A date: time scaled to [0, 1]; weekday, day of year and time of day as sine and cosine."""

    name: str
    scale: Scale
    """Of seconds since 1970 in UTC."""
    has_time: bool
    """Some training value has a time of day."""
    format: str
    """Format of text cells."""
    zone: str | None
    """Time zone of the training column; None if it has none."""
    unit: Literal["s", "ms", "us", "ns"]
    """Resolution of the training column."""
    kind: ClassVar[str] = "date"
    json_type: ClassVar[tuple[str, ...]] = ("string",)

    @property
    def width(self) -> int:
        """Number of encoded columns."""
        return 7 if self.has_time else 5

    @cached_property
    def _zone(self) -> tzinfo:
        return read_zone(self.zone)

    def encode_cell(self, cell: Any, missing: MissingCells, notes: Notes) -> Sequence[float] | None:
        """Encode a date; a text that is no date counts as missing."""
        try:
            seconds = parse_date(cell, self.format)
        except TypeError as error:
            raise wrong_type(self.name, "a date such as '2026-01-31'", cell) from error
        if seconds is None:
            notes.append(("date", self.name))
            return None
        local = (EPOCH + timedelta(seconds=seconds)).astimezone(self._zone)
        values = [_scale_one(self.scale, seconds, self.name, notes), *_WEEKDAY[local.weekday()]]
        values += _YEAR_DAY[local.timetuple().tm_yday - 1]
        if self.has_time:
            values += _circle((local.hour * 3600 + local.minute * 60 + local.second) / DAY)
        return values

    def encode_values(self, seconds: Floats, local: Floats | None = None) -> EncodedColumn:
        """Encode dates, NaN where missing; `local` are the seconds in the column's zone. (n,)"""
        scaled = _encode_numbers(self.scale, seconds)
        observed = scaled.observed
        clock = np.floor(np.where(observed, seconds if local is None else local, 0.0))
        days, second = np.divmod(clock.astype(np.int64), DAY)
        dates = days.astype("datetime64[D]")
        year_day = (dates - dates.astype("datetime64[Y]")).astype(np.int64)
        values = np.zeros((len(seconds), self.width), dtype=np.float32)
        values[:, :1] = scaled.values
        values[:, 1:3] = np.asarray(_WEEKDAY, dtype=np.float32)[(days + 3) % 7]
        values[:, 3:5] = np.asarray(_YEAR_DAY, dtype=np.float32)[year_day]
        if self.has_time:
            times = np.zeros((DAY, 2), dtype=np.float32)
            present = np.flatnonzero(np.bincount(second, minlength=DAY))
            times[present] = [_circle(each / DAY) for each in present.tolist()]
            values[:, 5:] = times[second]
        values[~observed] = 0.0
        return EncodedColumn(values, observed, scaled.notes)

    def decode_cell(self, values: Sequence[float]) -> Any:
        """Return the date as text, in the column's format."""
        step = 1 if self.has_time else DAY
        seconds = round(self.scale.invert_one(values[0]) / step) * step
        moment = (EPOCH + timedelta(seconds=seconds)).astimezone(self._zone)
        if self.format != ISO:
            return moment.strftime(self.format)
        return moment.replace(tzinfo=None).isoformat() if self.has_time else str(moment.date())


@dataclass(frozen=True)
class CategoryColumn:
    """A category with few values: a one-hot group."""

    name: str
    values: tuple[str, ...]
    type: ValueType
    kind: ClassVar[str] = "category"
    json_type: ClassVar[tuple[str, ...]] = ("string", "number", "boolean")

    @property
    def width(self) -> int:
        """Number of encoded columns."""
        return len(self.values)

    @cached_property
    def _places(self) -> dict[str, int]:
        return {text: at for at, text in enumerate(self.values)}

    def encode_cell(self, cell: Any, missing: MissingCells, notes: Notes) -> Sequence[float] | None:
        """One-hot encode; a value not in the training rows counts as missing."""
        text = category_text(_cell_text(cell, self.name), self.type, self._places, missing)
        if text is None:
            return None
        place = self._places.get(text)
        if place is None:
            notes.append(("unseen", self.name))
            return None
        group = [0.0] * self.width
        group[place] = 1.0
        return group

    def encode_texts(
        self, texts: Sequence[str], places: NDArray[np.int64], missing: MissingCells
    ) -> EncodedColumn:
        """One-hot encode cells; `places` (n,) index `texts`, −1 where missing."""
        own = [category_text(each, self.type, self._places, missing) for each in texts]
        at = np.array([self._places.get(text or "", -1) for text in own] + [-1])[places]
        there = np.array([text is not None for text in own] + [False])[places]
        observed = at >= 0
        values = np.zeros((len(places), self.width), dtype=np.float32)
        values[np.flatnonzero(observed), at[observed]] = 1.0
        return EncodedColumn(values, observed, {"unseen": there & ~observed})

    def decode_cell(self, values: Sequence[float]) -> Any:
        """Return the value with the largest number of the group."""
        return restore_type(self.values[max(range(self.width), key=values.__getitem__)], self.type)


@dataclass(frozen=True)
class HashedColumn:
    """A category with many values: hash buckets with learned embeddings.

    Rare and unseen values share the embedding with code 0: their own would be noise.
    """

    name: str
    width: int
    buckets: int
    frequent: tuple[int, ...]
    """Buckets of frequent values in ascending order; their codes start at 1."""
    vocabulary: tuple[str, ...]
    """The most frequent training values, most frequent first."""
    complete: bool
    """The vocabulary holds every training value."""
    type: ValueType
    kind: ClassVar[str] = "hashed"
    json_type: ClassVar[tuple[str, ...]] = ("string", "number", "boolean")

    @cached_property
    def _codes(self) -> dict[int, int]:
        return {bucket: 1 + at for at, bucket in enumerate(self.frequent)}

    @cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(self.vocabulary)

    def code_of(self, text: str) -> int:
        """Return the code of a value; 0 if it is rare or unseen."""
        return self._codes.get(hash_bucket(text, self.buckets), 0)

    def encode_cell(self, cell: Any, missing: MissingCells, notes: Notes) -> int | None:
        """Hash the value; code 0 if it is rare or unseen."""
        text = category_text(_cell_text(cell, self.name), self.type, self._known, missing)
        if text is None:
            return None
        if self.complete and text not in self._known:
            notes.append(("unseen", self.name))
        return self.code_of(text)

    def encode_texts(
        self, texts: Sequence[str], places: NDArray[np.int64], missing: MissingCells
    ) -> EncodedColumn:
        """Hash cells; `places` (n,) index `texts`, −1 where missing."""
        own = [category_text(each, self.type, self._known, missing) for each in texts]
        codes = [0 if text is None else self.code_of(text) for text in own]
        there = [text is not None for text in own]
        unseen = [self.complete and text is not None and text not in self._known for text in own]
        return EncodedColumn(
            np.array([*codes, 0], dtype=np.int64)[places],
            np.array([*there, False])[places],
            {"unseen": np.array([*unseen, False])[places]},
        )

    def decode_cell(self, word: int) -> Any:
        """Return a value of the vocabulary."""
        return restore_type(self.vocabulary[word], self.type)


DenseColumn = NumberColumn | DurationColumn | DateColumn | CategoryColumn
Column = DenseColumn | HashedColumn
COLUMNS: dict[str, Callable[..., Column]] = {
    "number": NumberColumn,
    "duration": DurationColumn,
    "date": DateColumn,
    "category": CategoryColumn,
    "hashed": HashedColumn,
}
"""Columns by their name in the encoder's JSON form."""
C = TypeVar("C")


def build_column(data: Mapping[str, Any], kinds: Mapping[str, Callable[..., C]]) -> C:
    """Build a column of one of these kinds from its JSON form."""
    if data["codec"] not in kinds:
        raise BundleError(unknown("kind of column", str(data["codec"]), kinds))
    fields = {name: value for name, value in data.items() if name != "codec"}
    if "scale" in fields:
        fields["scale"] = Scale(*(tuple(fields["scale"][key]) for key in ("knots", "scaled_knots")))
    for name in ("values", "vocabulary", "frequent"):
        if name in fields:
            fields[name] = tuple(fields[name])
    return kinds[data["codec"]](**fields)


def read_number(cell: Any, decimal: str = "") -> float | None:
    """Read a number; None if a text is not one, infinity if it is too large.

    True is 1. With a decimal mark, texts may have separators and a currency; see `parse_number`.

    Raises
    ------
    TypeError
        The cell is neither a number nor a text.
    """
    kind = type(cell)
    if kind is float:
        return float(cell)
    if kind is str:
        return parse_number(cell, decimal)
    value = plain_value(cell)
    if isinstance(value, bytes):
        return parse_number(text_of(value), decimal)
    if not isinstance(value, str | int | float | Decimal):
        raise TypeError(f"expected a number, got a {kind.__name__}")
    if isinstance(value, str):
        return parse_number(value, decimal)
    try:
        return float(value)
    except OverflowError:
        return math.inf


def read_duration(cell: Any) -> float | None:
    """Read the seconds of a duration; None if a text is none, or if there is no unit.

    Raises
    ------
    TypeError
        The cell is a boolean, a list or another value that is never a duration.
    """
    if type(cell) is str:
        return parse_duration(cell)
    value = plain_value(cell)
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, str | bytes | int | float | Decimal | time):
        raise TypeError(f"expected a duration, got a {type(cell).__name__}")
    return parse_duration(text_of(value))


def category_text(text: str, kind: ValueType, known: Any, missing: MissingCells) -> str | None:
    """Return the text of a category's value as the training values were written.

    None if the value is a number that counts as missing.
    """
    if kind == "str" or text in known:
        return text
    if kind == "bool":
        return text.strip().capitalize()
    number = parse_number(text)
    if number is None:
        return text
    return None if number in missing.numbers else text_of(number)


def restore_type(text: str, kind: ValueType) -> Any:
    """Return a category's value in the type of the training column."""
    if kind == "bool":
        return text == "True"
    return {"int": int, "float": float}.get(kind, str)(text)


def hash_bucket(text: str, buckets: int) -> int:
    """Hash a text to a bucket, identically on every machine."""
    digest = hashlib.blake2b(text.encode(errors="replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % buckets


def wrong_type(name: str, expected: str, cell: Any) -> RequestError:
    """Build the error of a cell that a column cannot have."""
    shown = repr(cell) if len(repr(cell)) <= 80 else repr(cell)[:77] + "..."
    return RequestError(
        f"column {name!r}: expected {expected}, got {shown}; correct it, or leave it out (null) "
        "where it is missing",
        name,
    )


def _cell_text(cell: Any, name: str) -> str:
    try:
        return text_of(cell)
    except TypeError as error:
        raise wrong_type(name, "a text, number or boolean", cell) from error


def _circle(phase: float) -> tuple[float, float]:
    """Return sine and cosine of a phase, scaled to [0, 1]."""
    angle = 2 * math.pi * phase
    return (math.sin(angle) + 1) / 2, (math.cos(angle) + 1) / 2


_WEEKDAY = [_circle(day / 7) for day in range(7)]
_YEAR_DAY = [_circle(day / 365.25) for day in range(366)]


def _scale_one(scale: Scale, value: float, name: str, notes: Notes) -> float:
    low, high = scale.bounds
    if value < low or value > high:
        notes.append(("range", name))
    return scale.apply_one(value)


def _encode_numbers(scale: Scale, numbers: Floats) -> EncodedColumn:
    observed = ~np.isnan(numbers)
    values = np.where(observed, scale.apply(numbers), 0.0).astype(np.float32)
    return EncodedColumn(values[:, None], observed, {"range": scale.far_outside(numbers)})
