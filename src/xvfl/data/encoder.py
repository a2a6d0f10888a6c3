"""A party's own encoder of its table: fitted on its training rows alone, saved as JSON.

Shapes: n rows; dense, hashed, raw and encoded as the layout counts them.
"""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types

from xvfl.config import Scaling, TableOptions
from xvfl.data.codecs import (
    Bools,
    CategoryCodec,
    Codec,
    DateCodec,
    HashedCodec,
    NumberCodec,
    codec_from_dict,
)
from xvfl.data.encoded import Encoded
from xvfl.data.images import ImageEncoder, Images, read_images
from xvfl.data.parse import (
    ISO,
    ColumnKind,
    as_dates,
    as_numbers,
    blank,
    date_format,
    kind_of,
    whose,
)
from xvfl.data.text import as_text
from xvfl.errors import DataWarning, InputError, unknown
from xvfl.primitives.layout import Layout

__all__ = [
    "Encoded",
    "ImageEncoder",
    "Images",
    "TableEncoder",
    "TableOptions",
    "encoder_from_dict",
    "read_images",
]


class TableEncoder:
    """Turns a party's table into numbers in [0, 1] and bucket codes, and back."""

    def __init__(
        self,
        party: str,
        codecs: Iterable[Codec],
        missing: Sequence[str] = (),
        left_out: Mapping[str, str] | None = None,
    ) -> None:
        """Build from codecs in the table's column order."""
        by_column = list(codecs)
        self.party = party
        self.missing = tuple(missing)
        self.left_out = dict(left_out or {})
        """Columns that carry no information, and why."""
        self.columns = [codec.feature.name for codec in by_column]
        """The columns used, in the table's order."""
        self._codecs = sorted(by_column, key=lambda codec: codec.feature.kind == "hashed")
        self.layout = Layout(tuple(codec.feature for codec in self._codecs))

    @classmethod
    def fit(cls, frame: pd.DataFrame, options: TableOptions, party: str) -> "TableEncoder":
        """Fit on training rows, indexed by id; warn of columns that carry no information."""
        where = whose(frame, party)
        check_options(frame.columns, options, party, where)
        fitted = {
            name: _fit_column(blank(frame[name], options.na_values), options, party)
            for name in frame.columns
            if name not in options.drop
        }
        return cls.of_columns(party, fitted, options, where)

    @classmethod
    def of_columns(
        cls, party: str, fitted: Mapping[str, Codec | str], options: TableOptions, where: str
    ) -> "TableEncoder":
        """Join the columns' codecs; one that carries no information says why instead."""
        codecs = [each for each in fitted.values() if not isinstance(each, str)]
        left_out = {name: each for name, each in fitted.items() if isinstance(each, str)}
        if not codecs:
            raise InputError(
                f"{where}: expected at least one column with two different values, but found none "
                f"in {len(fitted)}; check the table and the columns dropped"
            )
        if left_out:
            reasons = ", ".join(f"{name!r} ({reason})" for name, reason in left_out.items())
            warnings.warn(f"{where}: left out {reasons}", DataWarning, stacklevel=3)
        return cls(party, codecs, options.na_values, left_out)

    def encode(self, frame: pd.DataFrame) -> Encoded:
        """Encode rows, indexed by id; columns not used in training are ignored."""
        self._check_columns(frame)
        n = len(frame)
        values = np.zeros((n, self.layout.dense), dtype=np.float32)
        codes = np.zeros((n, len(self.layout.hashed)), dtype=np.int64)
        observed = np.zeros((n, self.layout.raw), dtype=bool)
        notes: NDArray[np.object_] = np.full(n, "", dtype=object)
        at = hashed = 0
        for number, codec in enumerate(self._codecs):
            feature = codec.feature
            block = codec.encode(blank(frame[feature.name], self.missing), self.party)
            observed[:, number] = block.observed
            if feature.kind == "hashed":
                codes[:, hashed] = block.values
                hashed += 1
            else:
                values[:, at : at + feature.width] = block.values
                at += feature.width
            for text, rows in block.notes.items():
                _add_note(notes, text, rows)
        ids = as_text(frame.index.to_series()).tolist()
        return Encoded(ids, values, codes, observed, notes.tolist())

    def decode(
        self, encoded_columns: NDArray[Any], vectors: Mapping[str, NDArray[Any]]
    ) -> pd.DataFrame:
        """Turn (n, encoded) columns back into the table's own columns, units and types.

        `vectors` holds the learned (buckets, width) table of each hashed column.
        """
        columns: dict[str, pd.Series] = {}
        at = 0
        for codec in self._codecs:
            feature = codec.feature
            part = np.asarray(encoded_columns[:, at : at + feature.width], dtype=np.float64)
            columns[feature.name] = codec.decode(part, vectors)
            at += feature.width
        return pd.DataFrame({name: columns[name] for name in self.columns})

    @property
    def date_formats(self) -> dict[str, str]:
        """How columns of dates in a form of their own (31/01/2020) are written."""
        dates = [codec for codec in self._codecs if isinstance(codec, DateCodec)]
        return {each.name: each.format for each in dates if each.format != ISO}

    def to_dict(self) -> dict[str, Any]:
        """Give a JSON form."""
        by_name = {codec.feature.name: codec for codec in self._codecs}
        return {
            "type": "table",
            "party": self.party,
            "missing": list(self.missing),
            "left_out": self.left_out,
            "codecs": [by_name[name].to_dict() for name in self.columns],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "TableEncoder":
        """Read the JSON form."""
        codecs = [codec_from_dict(codec) for codec in data["codecs"]]
        return cls(data["party"], codecs, data["missing"], data["left_out"])

    def _check_columns(self, frame: pd.DataFrame) -> None:
        present = [str(name) for name in frame.columns]
        absent = [name for name in self.columns if name not in set(present)]
        if absent:
            near = get_close_matches(absent[0], present, n=1, cutoff=0.0)
            hint = f" (nearest present: {near[0]!r})" if near else ""
            more = f" and {len(absent) - 5} more" if len(absent) > 5 else ""
            named = ", ".join(map(repr, absent[:5])) + more
            raise InputError(
                f"{whose(frame, self.party)}: expected the columns used in training, but "
                f"{named} not in the table{hint}; add or rename columns, "
                "with empty cells where values are not known"
            )


def encoder_from_dict(data: Mapping[str, Any]) -> TableEncoder | ImageEncoder:
    """Read any encoder's JSON form."""
    if data["type"] not in ENCODERS:
        raise InputError(unknown("encoder type", str(data["type"]), ENCODERS))
    return ENCODERS[data["type"]].from_dict(data)


ENCODERS: dict[str, type[TableEncoder | ImageEncoder]] = {
    "table": TableEncoder,
    "image": ImageEncoder,
}


def check_options(
    columns: Sequence[str] | pd.Index, options: TableOptions, party: str, where: str
) -> None:
    """Refuse options that name a column that is not there, or one column twice."""
    for name in (*options.categorical, *options.numeric, *options.drop):
        if name not in columns:
            raise InputError(f"{where}: {unknown('column', name, columns)}")
    both = sorted(set(options.categorical) & set(options.numeric))
    if both:
        raise InputError(
            f"party {party!r}: column {both[0]!r} is named both as categorical and as numeric; "
            "keep one of the two"
        )


def _fit_column(cells: pd.Series, options: TableOptions, party: str) -> Codec | str:
    """Fit a column's codec, or say why the column carries no information."""
    name = str(cells.name)
    kind = _kind(cells, options)
    if kind == "number":
        numbers = as_numbers(cells, party)
        numbers = numbers[~np.isnan(numbers)]
        return _too_few(numbers) or NumberCodec.fit(name, numbers, options.scaling)
    if kind == "date":
        return _fit_date(name, cells, options.scaling)
    there = cells.dropna()
    distinct = as_text(there).unique()
    if len(distinct) > max(options.one_hot_max_size, 1):
        return HashedCodec.fit(name, there, options.hash_embedding_dim)
    return _too_few(distinct) or CategoryCodec.fit(name, there)


def _fit_date(name: str, cells: pd.Series, scaling: Scaling) -> Codec | str:
    form = date_format(cells) or ISO
    moments = as_dates(cells, form).dropna()
    dated = types.is_datetime64_any_dtype(cells.dtype)
    zone = str(cells.dt.tz) if dated and cells.dt.tz is not None else None
    unit = cells.dt.unit if dated else "us"
    few = _too_few(moments)
    return few or DateCodec.fit(name, moments, scaling, format=form, zone=zone, unit=unit)


def _kind(cells: pd.Series, options: TableOptions) -> ColumnKind:
    if cells.name in options.categorical:
        return "category"
    if cells.name in options.numeric and not types.is_datetime64_any_dtype(cells.dtype):
        return "number"
    return kind_of(cells)


def _too_few(values: Any) -> str:
    distinct = pd.Series(values).nunique()
    return {0: "holds nothing", 1: "holds one value"}.get(distinct, "")


def _add_note(notes: NDArray[np.object_], text: str, rows: Bools) -> None:
    if rows.any():
        earlier = notes[rows]
        notes[rows] = np.where(earlier == "", text, earlier + ("; " + text))
