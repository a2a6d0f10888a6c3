"""Codecs of a table's columns: each turns one raw feature into encoded columns and back.

Shapes: n rows, w encoded columns of the feature. Cells that count as missing arrive as NA.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types

from xvfl.config import Scaling
from xvfl.data.parse import as_dates, as_numbers, known
from xvfl.data.scaling import Floats, Scale, fit_scale
from xvfl.data.text import as_text
from xvfl.primitives.layout import Feature

Bools = NDArray[np.bool_]
ValueType = Literal["bool", "int", "float", "str"]

EXACT_WHOLE = 2.0**53
"""Below this a float holds every integer exactly."""
DAY = 86_400
FEWEST_BUCKETS, MOST_BUCKETS = 128, 2**16
LONGEST_VOCABULARY = 4096
ROWS_AT_ONCE = 4096
"""Rows compared with the vocabulary's vectors in one go."""


@dataclass(frozen=True)
class Block:
    """One feature of n rows, encoded."""

    values: NDArray[np.float32] | NDArray[np.int64]
    """(n, w) numbers, or (n,) bucket codes of a hashed feature; 0 where not observed."""
    observed: Bools
    """(n,) which cells are there."""
    notes: dict[str, Bools] = field(default_factory=dict)
    """What is odd about which cells."""


class Codec(Protocol):
    """What every kind of column does."""

    @property
    def feature(self) -> Feature:
        """Say how the column appears in the layout."""

    def encode(self, cells: pd.Series, party: str) -> Block:
        """Encode cells, indexed by row id; `party` is named in errors."""

    def decode(self, encoded: Floats, vectors: Mapping[str, Floats]) -> pd.Series:
        """Turn (n, w) encoded columns back into the column's own values."""

    def to_dict(self) -> dict[str, Any]:
        """Give a JSON form."""


@dataclass(frozen=True)
class NumberCodec:
    """A number, scaled to [0, 1]."""

    name: str
    scale: Scale
    whole: bool
    """All training values were integers, so decoded ones are too."""

    @classmethod
    def fit(cls, name: str, values: Floats, scaling: Scaling) -> "NumberCodec":
        """Fit the scale on finite training values."""
        whole = bool(np.all(np.trunc(values) == values) and np.abs(values).max() < EXACT_WHOLE)
        return cls(name, fit_scale(values, scaling), whole)

    @property
    def feature(self) -> Feature:
        """Say how the column appears in the layout."""
        return Feature(self.name, "numeric", 1)

    def encode(self, cells: pd.Series, party: str) -> Block:
        """Scale the numbers."""
        numbers = as_numbers(cells, party)
        observed = ~np.isnan(numbers)
        values = np.where(observed, self.scale.apply(numbers), 0.0).astype(np.float32)
        return Block(values[:, None], observed, _far(self.name, self.scale, numbers))

    def decode(self, encoded: Floats, vectors: Mapping[str, Floats]) -> pd.Series:
        """Scale back, to integers where the training values were integers."""
        numbers = self.scale.invert(encoded[:, 0])
        return pd.Series(np.rint(numbers).astype(np.int64) if self.whole else numbers)

    def to_dict(self) -> dict[str, Any]:
        """Give a JSON form."""
        return {"codec": "number", **asdict(self)}


@dataclass(frozen=True)
class DateCodec:
    """A date: elapsed time scaled to [0, 1], then weekday, day of year, time of day on circles."""

    name: str
    scale: Scale
    """Of seconds since 1970 in UTC."""
    timed: bool
    """Some training value has a time of day."""
    format: str
    """How text is read; unused where the column holds dates already."""
    zone: str | None
    unit: Literal["s", "ms", "us", "ns"]
    """Time zone and resolution of the training column."""

    @classmethod
    def fit(cls, name: str, moments: pd.Series, scaling: Scaling, **form: Any) -> "DateCodec":
        """Fit the scale on UTC training dates."""
        seconds = seconds_of(moments)
        timed = bool(np.any(seconds % DAY != 0))
        return cls(name, fit_scale(seconds, scaling), timed, **form)

    @property
    def feature(self) -> Feature:
        """Say how the column appears in the layout."""
        return Feature(self.name, "numeric", 7 if self.timed else 5)

    def encode(self, cells: pd.Series, party: str) -> Block:
        """Place the dates in time, the week, the year and, if any, the day."""
        moments = as_dates(cells, self.format)
        observed = moments.notna().to_numpy(dtype=bool)
        seconds = seconds_of(moments)
        local = moments.dt.tz_convert(self.zone or "UTC").dt
        turns = [local.day_of_week / 7, (local.day_of_year - 1) / 365.25]
        if self.timed:
            turns.append((local.hour * 3600 + local.minute * 60 + local.second) / DAY)
        columns = [self.scale.apply(seconds)]
        for turn in turns:
            angle = 2 * np.pi * turn.to_numpy(dtype=np.float64)
            columns += [(np.sin(angle) + 1) / 2, (np.cos(angle) + 1) / 2]
        values = np.where(observed[:, None], np.stack(columns, axis=1), 0.0).astype(np.float32)
        notes = _far(self.name, self.scale, seconds)
        notes[f"unreadable date in {self.name}"] = cells.notna().to_numpy(dtype=bool) & ~observed
        return Block(values, observed, notes)

    def decode(self, encoded: Floats, vectors: Mapping[str, Floats]) -> pd.Series:
        """Read the elapsed time, to the second or, without times in training, to the day."""
        step = 1 if self.timed else DAY
        seconds = np.rint(self.scale.invert(encoded[:, 0]) / step).astype(np.int64) * step
        moments = pd.Series(seconds.astype("datetime64[s]")).dt.as_unit(self.unit)
        return moments.dt.tz_localize("UTC").dt.tz_convert(self.zone) if self.zone else moments

    def to_dict(self) -> dict[str, Any]:
        """Give a JSON form."""
        return {"codec": "date", **asdict(self)}


@dataclass(frozen=True)
class CategoryCodec:
    """One of a few values: a one-hot group."""

    name: str
    values: tuple[str, ...]
    type: ValueType

    @classmethod
    def fit(cls, name: str, cells: pd.Series) -> "CategoryCodec":
        """Take the distinct values of non-missing training cells."""
        return cls(name, tuple(sorted(as_text(cells).unique())), value_type(cells))

    @property
    def feature(self) -> Feature:
        """Say how the column appears in the layout."""
        return Feature(self.name, "category", len(self.values))

    def encode(self, cells: pd.Series, party: str) -> Block:
        """Mark each cell's value; one never seen in training counts as missing."""
        there, texts = known(cells)
        at = np.full(len(cells), -1)
        at[there] = pd.Index(self.values, dtype="str").get_indexer(pd.Index(texts))
        observed = at >= 0
        values = np.zeros((len(cells), len(self.values)), dtype=np.float32)
        values[np.flatnonzero(observed), at[observed]] = 1.0
        return Block(values, observed, {f"unseen category in {self.name}": there & ~observed})

    def decode(self, encoded: Floats, vectors: Mapping[str, Floats]) -> pd.Series:
        """Give the value with the largest column of the group."""
        return _typed(self.values, self.type).take(encoded.argmax(1)).reset_index(drop=True)

    def to_dict(self) -> dict[str, Any]:
        """Give a JSON form."""
        return {"codec": "category", **asdict(self)}


@dataclass(frozen=True)
class HashedCodec:
    """One of many values: a bucket, whose vector the nets learn."""

    name: str
    width: int
    buckets: int
    vocabulary: tuple[str, ...]
    """The most frequent training values, most frequent first."""
    complete: bool
    """The vocabulary holds every training value."""
    type: ValueType

    @classmethod
    def fit(cls, name: str, cells: pd.Series, width: int) -> "HashedCodec":
        """Count the distinct values of non-missing training cells."""
        return cls.of_counts(name, as_text(cells).value_counts(), width, value_type(cells))

    @classmethod
    def of_counts(cls, name: str, found: pd.Series, width: int, kind: ValueType) -> "HashedCodec":
        """Build from how often each distinct value occurs."""
        counts = found.rename_axis("value").reset_index(name="count")
        counts = counts.sort_values(["count", "value"], ascending=[False, True])
        vocabulary = tuple(counts["value"].head(LONGEST_VOCABULARY).tolist())
        buckets = 1 << (2 * len(counts) - 1).bit_length()
        return cls(
            name,
            width,
            min(max(buckets, FEWEST_BUCKETS), MOST_BUCKETS),
            vocabulary,
            len(vocabulary) == len(counts),
            kind,
        )

    @property
    def feature(self) -> Feature:
        """Say how the column appears in the layout."""
        return Feature(self.name, "hashed", self.width, self.buckets)

    @cached_property
    def _bucket_of_word(self) -> NDArray[np.int64]:
        return hash_buckets(pd.Index(self.vocabulary, dtype="str"), self.buckets)

    def encode(self, cells: pd.Series, party: str) -> Block:
        """Hash each cell's value; a new value gets a bucket too."""
        there, texts = known(cells)
        positions, distinct = pd.factorize(texts)
        codes = np.zeros(len(cells), dtype=np.int64)
        codes[there] = hash_buckets(distinct, self.buckets)[positions]
        unseen = np.zeros(len(cells), dtype=bool)
        if self.complete:
            unseen[there] = ~distinct.isin(self.vocabulary)[positions]
        return Block(codes, there, {f"unseen category in {self.name}": unseen})

    def decode(self, encoded: Floats, vectors: Mapping[str, Floats]) -> pd.Series:
        """Give the value of the vocabulary whose vector is nearest."""
        buckets, word = np.unique(self._bucket_of_word, return_index=True)
        table = np.asarray(vectors[self.name], dtype=np.float64)[buckets]
        centre = table.mean(0)
        # Centred, single precision tells neighbours apart and is twice as fast.
        near, table = (encoded - centre).astype(np.float32), (table - centre).astype(np.float32)
        nearest = np.zeros(len(encoded), dtype=np.int64)
        for start in range(0, len(encoded), ROWS_AT_ONCE):
            part = slice(start, start + ROWS_AT_ONCE)
            nearest[part] = ((table**2).sum(1) - 2 * near[part] @ table.T).argmin(1)
        return _typed(self.vocabulary, self.type).take(word[nearest]).reset_index(drop=True)

    def to_dict(self) -> dict[str, Any]:
        """Give a JSON form."""
        return {"codec": "hashed", **asdict(self)}


def codec_from_dict(data: Mapping[str, Any]) -> Codec:
    """Read a codec's JSON form."""
    fields = {name: value for name, value in data.items() if name != "codec"}
    if "scale" in fields:
        fields["scale"] = Scale(*(tuple(fields["scale"][end]) for end in ("inner", "outer")))
    for name in ("values", "vocabulary"):
        if name in fields:
            fields[name] = tuple(fields[name])
    return CODECS[data["codec"]](**fields)


CODECS: dict[str, type[NumberCodec | DateCodec | CategoryCodec | HashedCodec]] = {
    "number": NumberCodec,
    "date": DateCodec,
    "category": CategoryCodec,
    "hashed": HashedCodec,
}


def hash_buckets(distinct: pd.Index, buckets: int) -> NDArray[np.int64]:
    """Hash strings to buckets, the same on every machine and in every run."""
    digests = (hashlib.blake2b(text.encode(), digest_size=8).digest() for text in distinct)
    return np.array([int.from_bytes(digest, "big") % buckets for digest in digests], dtype=np.int64)


def value_type(cells: pd.Series) -> ValueType:
    """Say what type category values go back to; anything unusual comes back as text."""
    if isinstance(cells.dtype, pd.CategoricalDtype):
        cells = cells.astype(cells.cat.categories.dtype)
    kind = types.infer_dtype(cells)
    if kind == "boolean":
        return "bool"
    if kind in ("integer", "floating", "mixed-integer-float"):
        numbers = cells.to_numpy(dtype=np.float64)
        return "int" if np.all(np.trunc(numbers) == numbers) else "float"
    return "str"


def _typed(values: tuple[str, ...], kind: ValueType) -> pd.Series:
    texts = pd.Series(values, dtype="str")
    if kind == "bool":
        return texts == "True"
    return texts if kind == "str" else texts.astype(np.int64 if kind == "int" else np.float64)


def seconds_of(moments: pd.Series) -> Floats:
    """Give UTC dates as seconds since 1970, NaN where there is none."""
    plain = moments.dt.tz_localize(None).dt.as_unit("us").to_numpy(dtype="datetime64[us]")
    seconds = plain.astype(np.int64) / 1e6
    return np.where(np.isnat(plain), np.nan, seconds)


def _far(name: str, scale: Scale, numbers: Floats) -> dict[str, Bools]:
    return {f"{name} far outside the training range": scale.far_outside(numbers)}
