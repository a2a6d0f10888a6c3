"""Codecs of a table's columns: each encodes one raw feature and decodes it.

Shapes: n rows, w encoded columns of the feature. Missing cells are NA.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types

from xvfl.data.number_text import parse_durations, write_numbers
from xvfl.data.parse import observed_text, parse_dates, parse_numbers
from xvfl.data.scaling import Floats, Scale
from xvfl.primitives.layout import Feature

Bools = NDArray[np.bool_]
ValueType = Literal["bool", "int", "float", "str"]

MAX_EXACT_INTEGER = 2.0**53
"""A float64 represents all smaller integers exactly."""
DAY = 86_400
MIN_BUCKETS, MAX_BUCKETS = 128, 2**16
FREQUENT_ROWS, FREQUENT_SHARE = 10, 0.005
"""Rows, or share of the rows if that is less, from which a value has an embedding of its own."""
MAX_VOCABULARY = 4096
MIN_PROBABILITY = 1e-7
DECODE_BATCH = 4096
"""Rows compared with the vocabulary's vectors at once."""


@dataclass(frozen=True)
class EncodedColumn:
    """One encoded feature of n rows."""

    values: NDArray[np.float32] | NDArray[np.int64]
    """(n, w) numbers, or (n,) bucket codes of a hashed feature; 0 where not observed."""
    observed: Bools
    """(n,) which cells are not missing."""
    notes: dict[str, Bools] = field(default_factory=dict)
    """Remarks on unusual cells: text → (n,) mask."""


@dataclass(frozen=True)
class NumberCodec:
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

    @property
    def feature(self) -> Feature:
        """The column's entry in the layout."""
        return Feature(self.name, "numeric", 1)

    def encode(self, cells: pd.Series, party: str) -> EncodedColumn:
        """Scale the numbers."""
        numbers = parse_numbers(cells, party, self.decimal)
        observed = ~np.isnan(numbers)
        values = np.where(observed, self.scale.apply(numbers), 0.0).astype(np.float32)
        notes = _range_notes(self.name, self.scale, numbers)
        return EncodedColumn(values[:, None], observed, notes)

    def rounded(self, encoded: Floats) -> Floats:
        """Round scaled numbers as `decode` does. (n,)"""
        return self.scale.apply(np.rint(self.scale.invert(encoded))) if self.whole else encoded

    def decode(self, encoded: Floats, vectors: Mapping[str, Floats]) -> pd.Series:
        """Invert the scaling; round if the training values were integers."""
        numbers = self.scale.invert(encoded[:, 0])
        if self.decimal:
            rounded = np.rint(numbers) if self.whole else numbers
            return write_numbers(rounded, self.whole, self.decimal, self.prefix, self.suffix)
        return pd.Series(np.rint(numbers).astype(np.int64) if self.whole else numbers)


@dataclass(frozen=True)
class DurationCodec:
    """A duration: its seconds, scaled to [0, 1]."""

    name: str
    scale: Scale
    text: bool
    """The training values were texts: decode to texts such as "1:30:00"."""

    @property
    def feature(self) -> Feature:
        """The column's entry in the layout."""
        return Feature(self.name, "numeric", 1)

    def encode(self, cells: pd.Series, party: str) -> EncodedColumn:
        """Scale the seconds; a text that is no duration counts as missing."""
        seconds = parse_durations(cells)
        observed = ~np.isnan(seconds)
        values = np.where(observed, self.scale.apply(seconds), 0.0).astype(np.float32)
        notes = _range_notes(self.name, self.scale, seconds)
        unreadable = cells.notna().to_numpy(dtype=bool) & ~observed
        notes[f"unreadable duration in {self.name}"] = unreadable
        return EncodedColumn(values[:, None], observed, notes)

    def decode(self, encoded: Floats, vectors: Mapping[str, Floats]) -> pd.Series:
        """Decode to durations in whole seconds."""
        seconds = np.rint(self.scale.invert(encoded[:, 0])).astype(np.int64)
        if not self.text:
            return pd.Series(pd.to_timedelta(seconds, unit="s"))
        clocks = [f"{s // 3600}:{s // 60 % 60:02d}:{s % 60:02d}" for s in seconds.tolist()]
        return pd.Series(clocks, dtype="str")


@dataclass(frozen=True)
class DateCodec:
    """A date: time scaled to [0, 1]; weekday, day of year and time of day as sine and cosine."""

    name: str
    scale: Scale
    """Of seconds since 1970 in UTC."""
    has_time: bool
    """Some training value has a time of day."""
    format: str
    """Format of text cells; unused for a datetime column."""
    zone: str | None
    """Time zone of the training column; None if it has none."""
    unit: Literal["s", "ms", "us", "ns"]
    """Resolution of the training column."""

    @property
    def feature(self) -> Feature:
        """The column's entry in the layout."""
        return Feature(self.name, "numeric", 7 if self.has_time else 5)

    def encode(self, cells: pd.Series, party: str) -> EncodedColumn:
        """Encode time, weekday, day of year and, if present, time of day."""
        timestamps = parse_dates(cells, self.format)
        observed = timestamps.notna().to_numpy(dtype=bool)
        seconds = to_epoch_seconds(timestamps)
        local = timestamps.dt.tz_convert(self.zone or "UTC").dt
        phases = [local.day_of_week / 7, (local.day_of_year - 1) / 365.25]
        if self.has_time:
            phases.append((local.hour * 3600 + local.minute * 60 + local.second) / DAY)
        columns = [self.scale.apply(seconds)]
        for phase in phases:
            angle = 2 * np.pi * phase.to_numpy(dtype=np.float64)
            columns += [(np.sin(angle) + 1) / 2, (np.cos(angle) + 1) / 2]
        values = np.where(observed[:, None], np.stack(columns, axis=1), 0.0).astype(np.float32)
        notes = _range_notes(self.name, self.scale, seconds)
        notes[f"unreadable date in {self.name}"] = cells.notna().to_numpy(dtype=bool) & ~observed
        return EncodedColumn(values, observed, notes)

    def decode(self, encoded: Floats, vectors: Mapping[str, Floats]) -> pd.Series:
        """Decode the time to seconds, or to days if no training value had a time of day."""
        step = 1 if self.has_time else DAY
        seconds = np.rint(self.scale.invert(encoded[:, 0]) / step).astype(np.int64) * step
        timestamps = pd.Series(seconds.astype("datetime64[s]")).dt.as_unit(self.unit)
        zone = self.zone
        return timestamps.dt.tz_localize("UTC").dt.tz_convert(zone) if zone else timestamps


@dataclass(frozen=True)
class CategoryCodec:
    """A category with few values: a one-hot group."""

    name: str
    values: tuple[str, ...]
    type: ValueType

    @property
    def feature(self) -> Feature:
        """The column's entry in the layout."""
        return Feature(self.name, "category", len(self.values))

    def encode(self, cells: pd.Series, party: str) -> EncodedColumn:
        """One-hot encode; a value not in the training rows counts as missing."""
        present, texts = observed_text(cells)
        at = np.full(len(cells), -1)
        at[present] = pd.Index(self.values, dtype="str").get_indexer(pd.Index(texts))
        observed = at >= 0
        values = np.zeros((len(cells), len(self.values)), dtype=np.float32)
        values[np.flatnonzero(observed), at[observed]] = 1.0
        notes = {f"unseen category in {self.name}": present & ~observed}
        return EncodedColumn(values, observed, notes)

    def decode(self, encoded: Floats, vectors: Mapping[str, Floats]) -> pd.Series:
        """Return the value with the largest column of the group."""
        return self.options().take(encoded.argmax(1)).reset_index(drop=True)

    def options(self) -> pd.Series:
        """List the values that a cell can have, in the order of `scores`."""
        return _restore_type(self.values, self.type)

    def scores(self, encoded: Floats, vectors: Mapping[str, Floats]) -> Floats:
        """Return the log-probability of each value. (n, values)"""
        return np.log(np.clip(encoded, MIN_PROBABILITY, 1.0))


@dataclass(frozen=True)
class HashedCodec:
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

    @classmethod
    def from_counts(
        cls, name: str, counts: Mapping[str, int], width: int, kind: ValueType
    ) -> "HashedCodec":
        """Build from the counts of the distinct values."""
        frequent = sorted(counts, key=lambda text: (-counts[text], text))
        buckets = 1 << (2 * len(counts) - 1).bit_length()
        buckets = min(max(buckets, MIN_BUCKETS), MAX_BUCKETS)
        minimum = min(FREQUENT_ROWS, FREQUENT_SHARE * sum(counts.values()))
        of_values = hash_buckets((text for text in frequent if counts[text] >= minimum), buckets)
        own = tuple(np.unique(of_values).tolist())
        complete = len(counts) <= MAX_VOCABULARY
        return cls(name, width, buckets, own, tuple(frequent[:MAX_VOCABULARY]), complete, kind)

    @property
    def feature(self) -> Feature:
        """The column's entry in the layout."""
        return Feature(self.name, "hashed", self.width, len(self.frequent) + 1)

    def _codes(self, texts: Iterable[str]) -> NDArray[np.int64]:
        code_of_bucket = np.zeros(self.buckets, dtype=np.int64)
        code_of_bucket[list(self.frequent)] = np.arange(1, len(self.frequent) + 1)
        codes: NDArray[np.int64] = code_of_bucket[hash_buckets(texts, self.buckets)]
        return codes

    def encode(self, cells: pd.Series, party: str) -> EncodedColumn:
        """Hash each cell's value; code 0 if it is rare or unseen."""
        present, texts = observed_text(cells)
        positions, distinct = pd.factorize(texts)
        codes = np.zeros(len(cells), dtype=np.int64)
        codes[present] = self._codes(distinct)[positions]
        unseen = np.zeros(len(cells), dtype=bool)
        if self.complete:
            unseen[present] = ~distinct.isin(self.vocabulary)[positions]
        return EncodedColumn(codes, present, {f"unseen category in {self.name}": unseen})

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
        codes, words = np.unique(self._codes(self.vocabulary), return_index=True)
        return (codes, words) if len(codes) == 1 else (codes[codes > 0], words[codes > 0])

    def options(self) -> pd.Series:
        """List the values that a cell can be decoded to, in the order of `scores`."""
        words = self.decodable[1]
        return _restore_type(self.vocabulary, self.type).take(words).reset_index(drop=True)

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
CODECS: dict[str, type[Codec]] = {
    "number": NumberCodec,
    "duration": DurationCodec,
    "date": DateCodec,
    "category": CategoryCodec,
    "hashed": HashedCodec,
}


def codec_to_dict(codec: Codec) -> dict[str, Any]:
    """Return the JSON-serializable form of a codec."""
    kind = next(kind for kind, cls in CODECS.items() if isinstance(codec, cls))
    return {"codec": kind, **asdict(codec)}


def codec_from_dict(data: Mapping[str, Any]) -> Codec:
    """Build a codec from its JSON form."""
    fields = {name: value for name, value in data.items() if name != "codec"}
    if "scale" in fields:
        fields["scale"] = Scale(*(tuple(fields["scale"][key]) for key in ("knots", "scaled_knots")))
    for name in ("values", "vocabulary", "frequent"):
        if name in fields:
            fields[name] = tuple(fields[name])
    return CODECS[data["codec"]](**fields)


def hash_buckets(texts: Iterable[str], buckets: int) -> NDArray[np.int64]:
    """Hash strings to buckets, identically on every machine."""
    digests = (hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts)
    return np.array([int.from_bytes(digest, "big") % buckets for digest in digests], dtype=np.int64)


def value_type(cells: pd.Series) -> ValueType:
    """Return the type that category values are decoded to; `str` unless bool or number."""
    if isinstance(cells.dtype, pd.CategoricalDtype):
        cells = cells.astype(cells.cat.categories.dtype)
    kind = types.infer_dtype(cells)
    if kind == "boolean":
        return "bool"
    if kind in ("integer", "floating", "mixed-integer-float"):
        numbers = cells.to_numpy(dtype=np.float64)
        return "int" if np.all(np.trunc(numbers) == numbers) else "float"
    return "str"


def _restore_type(values: tuple[str, ...], kind: ValueType) -> pd.Series:
    texts = pd.Series(values, dtype="str")
    if kind == "bool":
        return texts == "True"
    return texts if kind == "str" else texts.astype(np.int64 if kind == "int" else np.float64)


def to_epoch_seconds(timestamps: pd.Series) -> Floats:
    """Convert UTC dates to seconds since 1970, NaN where missing."""
    plain = timestamps.dt.tz_localize(None).dt.as_unit("us").to_numpy(dtype="datetime64[us]")
    seconds = plain.astype(np.int64) / 1e6
    return np.where(np.isnat(plain), np.nan, seconds)


def _range_notes(name: str, scale: Scale, numbers: Floats) -> dict[str, Bools]:
    return {f"{name} far outside the training range": scale.far_outside(numbers)}
