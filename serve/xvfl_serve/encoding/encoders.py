"""A party's rows → arrays: of a table's cells, or of images.

Shapes: n rows; dense, hashed and raw features as the party's encoder counts them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xvfl_serve.encoding.columns import (
    NOTES,
    Column,
    HashedColumn,
    MissingCells,
    Notes,
    build_column,
)
from xvfl_serve.errors import BundleError, RequestError, unknown

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
    """Encodes the rows of a table; a field that is absent or null is missing."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.party: str = data["party"]
        self.missing = MissingCells.of(data["na_values"])
        self.ignored = frozenset(data["left_out"])
        """Columns of the training table that carry no information; accepted and not used."""
        columns = [build_column(each, self.missing.numbers) for each in data["codecs"]]
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
        for name in cells:
            if name not in self._allowed:
                raise RequestError(unknown("column", name, self.names), name)
        missing = self.missing
        for column in self.dense:
            cell = cells.get(column.name)
            part = None if cell in missing else column.encode(cell, notes)
            observed.append(part is not None)
            values.extend(self._empty[column.name] if part is None else part)
        for hashed in self.hashed:
            cell = cells.get(hashed.name)
            absent = cell in missing
            observed.append(not absent)
            codes.append(0 if absent else hashed.encode(cell, notes))
        return notes

    def decode(self, values: NDArray[Any], words: NDArray[Any]) -> dict[str, Any]:
        """Decode one row of completed values (dense,) and vocabulary places (hashed,)."""
        decoded, at, numbers = {}, 0, values.tolist()
        for column in self.dense:
            decoded[column.name] = column.decode(numbers[at : at + column.width])
            at += column.width
        for hashed, word in zip(self.hashed, words.tolist(), strict=True):
            decoded[hashed.name] = hashed.decode(word)
        return {name: decoded[name] for name in self.names}


class ImageRows:
    """Encodes images, given as arrays or nested lists of pixels; null or NaN is missing."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.party: str = data["party"]
        self.axes: str = data["axes"]
        self.shape = tuple(data["shape"])
        self.low, self.high, self.dtype = data["low"], data["high"], data["dtype"]
        sizes = dict(zip("CHW", self.shape, strict=True))
        self.own_shape = tuple(sizes[axis] for axis in self.axes)
        self.names = self.features = [IMAGE]
        self.feature_key = (IMAGE,)

    def encode(self, rows: Sequence[Any], first: int = 0) -> EncodedRows:
        """Encode rows, each {"image": pixels} or None."""
        pixels = np.full((len(rows), *self.own_shape), np.nan, dtype=np.float32)
        for at, row in enumerate(rows):
            image = self._pixels(row, first + at)
            if image is not None:
                pixels[at] = image
        return self.encode_pixels(pixels)

    def encode_pixels(
        self, pixels: NDArray[Any], observed: NDArray[np.bool_] | None = None
    ) -> EncodedRows:
        """Scale images (n, *own_shape) to [0, 1]; a pixel missing in one channel is in all."""
        n = len(pixels)
        channels = pixels.astype(np.float32)
        if np.isinf(channels).any():
            raise RequestError(
                "expected finite pixels, but some are infinite; use NaN where missing", IMAGE
            )
        if self.axes == "HW":
            channels = channels[:, None]
        elif self.axes == "HWC":
            channels = np.moveaxis(channels, -1, 1)
        present = np.asarray(~np.isnan(channels).any(axis=1))
        if observed is not None:
            present &= observed
        scaled = np.where(present[:, None], (channels - self.low) / (self.high - self.low), 0.0)
        far = np.asarray(((scaled < -1) | (scaled > 2)).any(axis=(1, 2, 3)))
        notes: list[Notes] = [[("pixels", IMAGE)] if each else [] for each in far.tolist()]
        values = np.clip(scaled, 0.0, 1.0).astype(np.float32)
        codes = np.zeros((n, 0), dtype=np.int64)
        return EncodedRows(values, codes, present.reshape(n, -1), notes)

    def decode(self, values: NDArray[Any], words: NDArray[Any]) -> dict[str, Any]:
        """Decode one completed image to the party's axes and range."""
        image = np.clip(values.astype(np.float64).reshape(self.shape), 0.0, 1.0)
        image = image * (self.high - self.low) + self.low
        if self.axes == "HW":
            image = image[0]
        elif self.axes == "HWC":
            image = np.moveaxis(image, 0, -1)
        whole = np.dtype(self.dtype).kind in "iub"
        return {IMAGE: (np.rint(image).astype(np.int64) if whole else image).tolist()}

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
