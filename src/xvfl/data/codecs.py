"""Codecs of a table's columns: the columns of `xvfl_serve`, for cells in pandas.

Shapes: n rows, w encoded columns of the feature. Missing cells are NA.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types

from xvfl.data.parse import (
    local_seconds,
    mask_missing,
    observed_text,
    parse_dates,
    parse_durations,
    parse_numbers,
)
from xvfl.data.text import without_categories
from xvfl.primitives.layout import Feature
from xvfl_serve.encoding.cells import MissingCells
from xvfl_serve.encoding.columns import (
    DAY,
    CategoryColumn,
    DateColumn,
    DurationColumn,
    EncodedColumn,
    HashedColumn,
    NoteKind,
    NumberColumn,
    ValueType,
    build_column,
    hash_bucket,
    restore_type,
)
from xvfl_serve.encoding.number_text import write_duration, write_number
from xvfl_serve.encoding.scale import Floats, significant

MAX_EXACT_INTEGER = 2.0**53
"""A float64 represents all smaller integers exactly."""
MIN_BUCKETS, MAX_BUCKETS = 128, 2**16
FREQUENT_ROWS, FREQUENT_SHARE = 10, 0.005
"""Rows, or share of the rows if that is less, from which a value has an embedding of its own."""
MAX_VOCABULARY = 4096
MIN_PROBABILITY = 1e-7
DECODE_BATCH = 4096
"""Rows compared with the vocabulary's vectors at once."""


class NumberCodec(NumberColumn):
    """A number, scaled to [0, 1]."""

    @property
    def feature(self) -> Feature:
        """The column's entry in the layout."""
        return Feature(self.name, "numeric", 1)

    def encode(self, cells: pd.Series, party: str, missing: MissingCells) -> EncodedColumn:
        """Scale the numbers."""
        return self.encode_values(self.numbers(cells, party, missing))

    def numbers(self, cells: pd.Series, party: str, missing: MissingCells) -> Floats:
        """Parse the cells, NaN where missing. (n,)"""
        return parse_numbers(cells, party, self.decimal, missing)

    def rounded(self, encoded: Floats) -> Floats:
        """Round scaled numbers as `decode` does. (n,)"""
        return self.scale.apply(np.rint(self.scale.invert(encoded))) if self.whole else encoded

    def decode(self, encoded: Floats, vectors: Mapping[str, Floats]) -> pd.Series:
        """Invert the scaling; round if the training values were integers."""
        numbers = self.scale.invert(encoded[:, 0])
        if not self.whole:
            numbers = np.array([significant(each) for each in numbers.tolist()])
        if self.decimal:
            form = (self.whole, self.decimal, self.prefix, self.suffix)
            return pd.Series([write_number(each, *form) for each in numbers.tolist()], dtype="str")
        return pd.Series(np.rint(numbers).astype(np.int64) if self.whole else numbers)


class DurationCodec(DurationColumn):
    """A duration: its seconds, scaled to [0, 1]."""

    @property
    def feature(self) -> Feature:
        """The column's entry in the layout."""
        return Feature(self.name, "numeric", 1)

    def encode(self, cells: pd.Series, party: str, missing: MissingCells) -> EncodedColumn:
        """Scale the seconds; a cell that is not a duration or has no unit counts as missing."""
        seconds = self.numbers(cells, party, missing)
        return _note_unreadable("duration", cells, self.encode_values(seconds))

    def numbers(self, cells: pd.Series, party: str, missing: MissingCells) -> Floats:
        """Parse the cells as seconds, NaN where missing or unreadable. (n,)"""
        return parse_durations(cells, party)

    def decode(self, encoded: Floats, vectors: Mapping[str, Floats]) -> pd.Series:
        """Decode to durations in whole seconds."""
        seconds = self.scale.invert(encoded[:, 0])
        if not self.text:
            return pd.Series(pd.to_timedelta(np.rint(seconds).astype(np.int64), unit="s"))
        return pd.Series([write_duration(each) for each in seconds.tolist()], dtype="str")


class DateCodec(DateColumn):
    """A date: time scaled to [0, 1]; weekday, day of year and time of day as sine and cosine."""

    @property
    def feature(self) -> Feature:
        """The column's entry in the layout."""
        return Feature(self.name, "numeric", self.width)

    def encode(self, cells: pd.Series, party: str, missing: MissingCells) -> EncodedColumn:
        """Encode time, weekday, day of year and, if present, time of day."""
        seconds = self.numbers(cells, party, missing)
        local = local_seconds(seconds, self.zone) if self.zone else None
        return _note_unreadable("date", cells, self.encode_values(seconds, local))

    def numbers(self, cells: pd.Series, party: str, missing: MissingCells) -> Floats:
        """Parse the cells as seconds since 1970, NaN where missing or unreadable. (n,)"""
        return parse_dates(cells, self.format, party)

    def decode(self, encoded: Floats, vectors: Mapping[str, Floats]) -> pd.Series:
        """Decode the time to seconds, or to days if no training value had a time of day."""
        step = 1 if self.has_time else DAY
        seconds = np.rint(self.scale.invert(encoded[:, 0]) / step).astype(np.int64) * step
        timestamps = pd.Series(seconds.astype("datetime64[s]")).dt.as_unit(self.unit)
        zone = self.zone
        return timestamps.dt.tz_localize("UTC").dt.tz_convert(zone) if zone else timestamps


class CategoryCodec(CategoryColumn):
    """A category with few values: a one-hot group."""

    @property
    def feature(self) -> Feature:
        """The column's entry in the layout."""
        return Feature(self.name, "category", len(self.values))

    def encode(self, cells: pd.Series, party: str, missing: MissingCells) -> EncodedColumn:
        """One-hot encode; a value not in the training rows counts as missing."""
        return self.encode_texts(*distinct_texts(cells), missing)

    def decode(self, encoded: Floats, vectors: Mapping[str, Floats]) -> pd.Series:
        """Return the value with the largest column of the group."""
        return self.options().take(encoded.argmax(1)).reset_index(drop=True)

    def options(self) -> pd.Series:
        """List the values that a cell can have, in the order of `scores`."""
        return _restore_types(self.values, self.type)

    def scores(self, encoded: Floats, vectors: Mapping[str, Floats]) -> Floats:
        """Return the log-probability of each value. (n, values)"""
        return np.log(np.clip(encoded, MIN_PROBABILITY, 1.0))


class HashedCodec(HashedColumn):
    """A category with many values: hash buckets with learned embeddings.

    Rare and unseen values share the embedding with code 0: their own would be noise.
    """

    @classmethod
    def from_counts(
        cls, name: str, counts: Mapping[str, int], width: int, kind: ValueType
    ) -> "HashedCodec":
        """Build from the counts of the distinct values."""
        frequent = sorted(counts, key=lambda text: (-counts[text], text))
        buckets = 1 << (2 * len(counts) - 1).bit_length()
        buckets = min(max(buckets, MIN_BUCKETS), MAX_BUCKETS)
        minimum = min(FREQUENT_ROWS, FREQUENT_SHARE * sum(counts.values()))
        own = {hash_bucket(text, buckets) for text in frequent if counts[text] >= minimum}
        complete = len(counts) <= MAX_VOCABULARY
        words = tuple(frequent[:MAX_VOCABULARY])
        return cls(name, width, buckets, tuple(sorted(own)), words, complete, kind)

    @property
    def feature(self) -> Feature:
        """The column's entry in the layout."""
        return Feature(self.name, "hashed", self.width, len(self.frequent) + 1)

    def encode(self, cells: pd.Series, party: str, missing: MissingCells) -> EncodedColumn:
        """Hash each cell's value; code 0 if it is rare or unseen."""
        return self.encode_texts(*distinct_texts(cells), missing)

    def decode(self, encoded: Floats, vectors: Mapping[str, Floats]) -> pd.Series:
        """Return the value of `options` with the nearest embedding."""
        nearest = np.zeros(len(encoded), dtype=np.int64)
        for start in range(0, len(encoded), DECODE_BATCH):
            part = slice(start, start + DECODE_BATCH)
            nearest[part] = self.scores(encoded[part], vectors).argmax(1)
        return self.options().take(nearest).reset_index(drop=True)

    @cached_property
    def decodable(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The codes that cells are decoded from, and the place of the most frequent word of each.

        Code 0 stands for many values, so it is one of them only if there is no other.
        """
        of_words = np.array([self.code_of(word) for word in self.vocabulary], dtype=np.int64)
        codes, words = np.unique(of_words, return_index=True)
        return (codes, words) if len(codes) == 1 else (codes[codes > 0], words[codes > 0])

    def options(self) -> pd.Series:
        """List the values that a cell can be decoded to, in the order of `scores`."""
        words = self.decodable[1]
        return _restore_types(self.vocabulary, self.type).take(words).reset_index(drop=True)

    def scores(self, encoded: Floats, vectors: Mapping[str, Floats]) -> Floats:
        """Return the negative squared distance to the embedding of each option. (n, options)"""
        table = np.asarray(vectors[self.name], dtype=np.float64)[self.decodable[0]]
        center = table.mean(0)
        # Centering keeps float32 accurate enough; it is twice as fast as float64.
        near, table = (encoded - center).astype(np.float32), (table - center).astype(np.float32)
        squares = (table**2).sum(1) + (near**2).sum(1, keepdims=True)
        scores: Floats = 2 * near @ table.T - squares
        return scores

    def options_of(self, codes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the places of codes among the options, −1 for other codes. (n,)"""
        known = self.decodable[0]
        at = np.searchsorted(known, codes).clip(max=len(known) - 1)
        return np.where(known[at] == codes, at, -1)


Codec = NumberCodec | DurationCodec | DateCodec | CategoryCodec | HashedCodec
"""Encodes one column of cells, and decodes it."""
CODECS: dict[str, Callable[..., Codec]] = {
    "number": NumberCodec,
    "duration": DurationCodec,
    "date": DateCodec,
    "category": CategoryCodec,
    "hashed": HashedCodec,
}


def parse_columns(
    frame: pd.DataFrame, codecs: Iterable[Codec], party: str, missing: MissingCells
) -> pd.DataFrame:
    """Return the columns of codecs, NA where missing: numbers, dates and durations as numbers."""
    columns = {}
    for codec in codecs:
        cells = mask_missing(frame[codec.name], missing)
        plain = types.is_numeric_dtype(cells.dtype) and not types.is_bool_dtype(cells.dtype)
        if isinstance(codec, NumberCodec | DurationCodec | DateCodec) and not plain:
            cells = pd.Series(codec.numbers(cells, party, missing), index=cells.index)
        columns[codec.name] = cells
    return pd.DataFrame(columns, index=frame.index)


def codec_to_dict(codec: Codec) -> dict[str, Any]:
    """Return the JSON-serializable form of a codec."""
    return {"codec": codec.kind, **asdict(codec)}


def codec_from_dict(data: Mapping[str, Any]) -> Codec:
    """Build a codec from its JSON form."""
    return build_column(data, CODECS)


def distinct_texts(cells: pd.Series) -> tuple[list[str], NDArray[np.int64]]:
    """Return the distinct texts of cells, and the place of each cell's text, −1 where missing."""
    present, texts = observed_text(cells)
    places = np.full(len(cells), -1, dtype=np.int64)
    places[present], distinct = pd.factorize(texts)
    return list(distinct), places


def value_type(cells: pd.Series) -> ValueType:
    """Return the type that category values are decoded to; `str` unless bool or number."""
    cells = without_categories(cells)
    kind = types.infer_dtype(cells)
    if kind == "boolean":
        return "bool"
    if kind in ("integer", "floating", "mixed-integer-float"):
        numbers = cells.to_numpy(dtype=np.float64)
        return "int" if np.all(np.trunc(numbers) == numbers) else "float"
    return "str"


def _restore_types(values: tuple[str, ...], kind: ValueType) -> pd.Series:
    dtypes = {"bool": bool, "int": np.int64, "float": np.float64}
    return pd.Series([restore_type(each, kind) for each in values], dtype=dtypes.get(kind, "str"))


def _note_unreadable(kind: NoteKind, cells: pd.Series, column: EncodedColumn) -> EncodedColumn:
    column.notes[kind] = cells.notna().to_numpy(dtype=bool) & ~column.observed
    return column
