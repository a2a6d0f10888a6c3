"""A party's rows → arrays: of a table's cells, or of images.

Shapes: n rows; dense, hashed and raw features as the party's encoder counts them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xvfl_serve.encoding.cells import MissingCells
from xvfl_serve.encoding.columns import (
    COLUMNS,
    NOTES,
    Column,
    HashedColumn,
    Notes,
    build_column,
)
from xvfl_serve.encoding.images import ImageScale
from xvfl_serve.errors import BundleError, RequestError, unknown
from xvfl_serve.row_report import absent_columns

IMAGE = "image"
"""The field of a row of an image party."""


@dataclass(frozen=True)
class EncodedRows:
    """n encoded rows of a party; 0 where a feature is missing."""

    values: NDArray[np.float32]
    """(n, dense) numbers, or (n, channels, height, width) for images."""
    codes: NDArray[np.int64]
    """(n, hashed) codes of hashed features."""
    observed: NDArray[np.bool_]
    """(n, raw) which raw features are observed."""
    notes: list[Notes]
    """Unusual cells of each row."""


class TableRows:
    """Encodes the rows of a table; a field that is null, or absent (with a note), is missing."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.party: str = data["party"]
        self.missing = MissingCells.of(data["na_values"])
        self.ignored = frozenset(data["left_out"])
        """Columns of the training table that carry no information; accepted and not used."""
        columns = [build_column(each, COLUMNS) for each in data["codecs"]]
        self.names = [column.name for column in columns]
        self.columns: list[Column] = sorted(columns, key=lambda each: each.kind == "hashed")
        self.dense = [each for each in self.columns if not isinstance(each, HashedColumn)]
        self.hashed = [each for each in self.columns if isinstance(each, HashedColumn)]
        self.features = [column.name for column in self.columns]
        """Names of the raw features, in the order of `EncodedRows.observed`."""
        self.feature_key = tuple(self.features)
        self._allowed = frozenset(self.names) | self.ignored
        self._empty = {each.name: (0.0,) * each.width for each in self.dense}

    def encode(self, rows: Sequence[Any], first: int = 0) -> EncodedRows:
        """Encode rows, each an object of cells or None; `first` is the number of the first row."""
        values: list[float] = []
        codes: list[int] = []
        observed: list[bool] = []
        notes: list[Notes] = []
        for number, row in enumerate(rows, first):
            try:
                notes.append(self._encode_row(row, values, codes, observed))
            except RequestError as error:
                message = f"row {number}, {error.message}"
                raise RequestError(message, error.field, number, error.status) from error
        n = len(rows)
        return EncodedRows(
            np.array(values, dtype=np.float32).reshape(n, -1 if values else 0),
            np.array(codes, dtype=np.int64).reshape(n, len(self.hashed)),
            np.array(observed, dtype=bool).reshape(n, len(self.columns)),
            notes,
        )

    def _encode_row(
        self, row: Any, values: list[float], codes: list[int], observed: list[bool]
    ) -> Notes:
        cells: Mapping[str, Any] = {} if row is None else row
        if not isinstance(cells, dict):
            raise RequestError(
                f"expected an object of columns (column: value), got {type(row).__name__}", "rows"
            )
        notes: Notes = []
        if row is not None and (absent := [name for name in self.names if name not in cells]):
            notes.append(("absent", absent_columns(absent)))
        for name in cells:
            if name not in self._allowed:
                raise RequestError(unknown("column", name, self.names), name)
        missing = self.missing
        for column in self.dense:
            cell = cells.get(column.name)
            part = None if cell in missing else column.encode_cell(cell, missing, notes)
            observed.append(part is not None)
            values.extend(self._empty[column.name] if part is None else part)
        for hashed in self.hashed:
            cell = cells.get(hashed.name)
            code = None if cell in missing else hashed.encode_cell(cell, missing, notes)
            observed.append(code is not None)
            codes.append(code or 0)
        return notes

    def decode(self, values: NDArray[Any], words: NDArray[Any]) -> dict[str, Any]:
        """Decode one row of completed values (dense,) and vocabulary places (hashed,)."""
        decoded, at, numbers = {}, 0, values.tolist()
        for column in self.dense:
            decoded[column.name] = column.decode_cell(numbers[at : at + column.width])
            at += column.width
        for hashed, word in zip(self.hashed, words.tolist(), strict=True):
            decoded[hashed.name] = hashed.decode_cell(word)
        return {name: decoded[name] for name in self.names}


class ImageRows:
    """Encodes images, given as arrays or nested lists of pixels; null or NaN is missing."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.scale = ImageScale.from_dict(data)
        self.party, self.own_shape = self.scale.party, self.scale.own_shape
        self.names = self.features = [IMAGE]
        self.feature_key = (IMAGE,)

    def encode(self, rows: Sequence[Any], first: int = 0) -> EncodedRows:
        """Encode rows, each {"image": pixels} or None."""
        pixels = np.full((len(rows), *self.own_shape), np.nan, dtype=np.float32)
        for at, row in enumerate(rows):
            image = self._pixels(row, first + at)
            if image is not None:
                pixels[at] = image
        if np.isinf(pixels).any():
            raise RequestError(
                "expected finite pixels, but some are infinite; use NaN where missing", IMAGE
            )
        scaled = self.scale.scale(pixels)
        far = scaled.notes["pixels"].tolist()
        notes: list[Notes] = [[("pixels", IMAGE)] if each else [] for each in far]
        codes = np.zeros((len(rows), 0), dtype=np.int64)
        return EncodedRows(scaled.values, codes, scaled.observed, notes)  # type: ignore[arg-type]

    def decode(self, values: NDArray[Any], words: NDArray[Any]) -> dict[str, Any]:
        """Decode one completed image to the party's axes and range."""
        return {IMAGE: self.scale.restore(values)[0].tolist()}

    def _pixels(self, row: Any, number: int) -> NDArray[Any] | None:
        if row is None:
            return None
        if not isinstance(row, dict):
            raise RequestError(
                f"row {number}: expected an object {{{IMAGE!r}: pixels}}, got {type(row).__name__}",
                IMAGE,
                number,
            )
        for name in row:
            if name != IMAGE:
                raise RequestError(f"row {number}, {unknown('field', name, [IMAGE])}", name, number)
        if row.get(IMAGE) is None:
            return None
        try:
            image = np.array(row[IMAGE], dtype=np.float64)
        except (TypeError, ValueError, OverflowError):
            image = np.empty(0)
        if image.shape != self.own_shape:
            raise RequestError(
                f"row {number}, field {IMAGE!r}: expected numbers of shape {self.own_shape}, with "
                f"null where missing, got shape {image.shape}",
                IMAGE,
                number,
            )
        return image


Encoder = TableRows | ImageRows
ENCODERS: dict[str, type[TableRows] | type[ImageRows]] = {"table": TableRows, "image": ImageRows}


def build_encoder(data: Mapping[str, Any]) -> Encoder:
    """Build an encoder from its JSON form."""
    if data.get("type") not in ENCODERS:
        raise BundleError(unknown("encoder type", str(data.get("type")), ENCODERS))
    return ENCODERS[data["type"]](data)


def write_notes(notes: Notes) -> str:
    """Write the notes of a row as one text."""
    return "; ".join(NOTES[kind].format(name) for kind, name in notes)
