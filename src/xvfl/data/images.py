"""A party's images and their encoder.

Shapes: n images, C channels, H height, W width. Raw features are the H·W pixels.
"""

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from xvfl.data.encoded import Encoded
from xvfl.data.ids import check_ids
from xvfl.errors import InputError, unknown
from xvfl.primitives.layout import Layout

Axes = Literal["HW", "CHW", "HWC"]
CHANNELS = (1, 3, 4)
"""Channel counts by which a last axis of channels is told."""


@dataclass
class Images:
    """Images of a party, one per id; ids become strings, and each must occur once."""

    pixels: NDArray[Any]
    """(n, C, H, W), (n, H, W), or (n, H, W, C) with 1, 3 or 4 channels; NaN means missing."""
    ids: Sequence[Any]
    observed: NDArray[np.bool_] | None = None
    """(n, H, W) which pixels are there; all that are not NaN if left out."""

    def __post_init__(self) -> None:
        """Check the ids."""
        self.pixels = np.asarray(self.pixels)
        self.ids = _check_ids(self.ids, len(self.pixels), "images")


@dataclass(frozen=True)
class ImageEncoder:
    """Turns images into (n, C, H, W) numbers in [0, 1], and back."""

    party: str
    axes: Axes
    """Order of the axes in the party's own arrays, after the rows."""
    shape: tuple[int, int, int]
    """(C, H, W)."""
    low: float
    high: float
    """The range that becomes [0, 1]."""
    dtype: str

    @classmethod
    def fit(cls, pixels: NDArray[Any], party: str) -> "ImageEncoder":
        """Take axes and range from training images."""
        axes = _axes(pixels, party)
        low, high = _range(pixels, party)
        channels, height, width = _channels_first(pixels[:1], axes).shape[1:]
        return cls(party, axes, (channels, height, width), low, high, pixels.dtype.name)

    @property
    def layout(self) -> Layout:
        """Say what the encoded images look like."""
        return Layout(image=self.shape)

    def encode(
        self,
        pixels: NDArray[Any],
        ids: Sequence[Any],
        observed: NDArray[np.bool_] | None = None,
    ) -> Encoded:
        """Scale images to [0, 1]; a pixel missing in one channel is missing in all."""
        names = _check_ids(ids, len(pixels), f"party {self.party!r}, images")
        if pixels.ndim != len(self.axes) + 1 or pixels.shape[1:] != self._own_shape:
            raise InputError(
                f"party {self.party!r}: expected images of shape {self._own_shape} as in training, "
                f"but got {pixels.shape[1:]}; resize or reorder them"
            )
        _refuse_infinite(pixels, self.party)
        first = _channels_first(pixels, self.axes).astype(np.float32)
        there = np.asarray(~np.isnan(first).any(axis=1), dtype=bool)
        if observed is not None:
            there &= self._check_observed(observed, there.shape)
        scaled = np.where(there[:, None], (first - self.low) / (self.high - self.low), 0.0)
        values = np.clip(scaled, 0.0, 1.0).astype(np.float32)
        far = np.asarray(((scaled < -1) | (scaled > 2)).any(axis=(1, 2, 3)))
        notes = ["pixels far outside the training range" if each else "" for each in far]
        codes = np.zeros((len(values), 0), dtype=np.int64)
        return Encoded(names, values, codes, there.reshape(len(values), -1), notes)

    def decode(
        self,
        encoded_columns: NDArray[Any],
        vectors: Mapping[str, NDArray[Any]] | None = None,
    ) -> NDArray[Any]:
        """Turn (n, C·H·W) or (n, C, H, W) numbers back into images as the party holds them."""
        first = np.asarray(encoded_columns, dtype=np.float64).reshape(-1, *self.shape)
        own = np.clip(first, 0.0, 1.0) * (self.high - self.low) + self.low
        if self.axes == "HW":
            own = own[:, 0]
        elif self.axes == "HWC":
            own = np.moveaxis(own, 1, -1)
        dtype = np.dtype(self.dtype)
        return (np.rint(own) if dtype.kind in "iub" else own).astype(dtype)

    def to_dict(self) -> dict[str, Any]:
        """Give a JSON form."""
        fields = {name: getattr(self, name) for name in ("party", "axes", "low", "high", "dtype")}
        return {"type": "image", "shape": list(self.shape), **fields}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "ImageEncoder":
        """Read the JSON form."""
        fields = {name: value for name, value in data.items() if name != "type"}
        return cls(**{**fields, "shape": tuple(data["shape"])})

    @property
    def _own_shape(self) -> tuple[int, ...]:
        channels, height, width = self.shape
        return {
            "HW": (height, width),
            "CHW": (channels, height, width),
            "HWC": (height, width, channels),
        }[self.axes]

    def _check_observed(
        self, observed: NDArray[np.bool_], shape: tuple[int, ...]
    ) -> NDArray[np.bool_]:
        if observed.shape != shape:
            raise InputError(
                f"party {self.party!r}: expected observed of shape {shape} (images, height, "
                f"width), but got {observed.shape}; give one mark per pixel"
            )
        return observed.astype(bool)


def read_images(path: str | Path) -> Images:
    """Read an .npz file with arrays `images`, `ids` and, if pixels are missing, `observed`."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"file {path}: there is no such file; check the path")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, AttributeError, TypeError, zipfile.BadZipFile) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"file {path}: cannot be read as .npz ({reason}); "
            "save images, ids and observed as plain arrays with numpy.savez"
        ) from error
    for name in ("images", "ids"):
        if name not in arrays:
            raise InputError(f"file {path}: {unknown('array', name, arrays)}; save {name!r} too")
    return Images(arrays["images"], arrays["ids"].tolist(), arrays.get("observed"))


def _check_ids(ids: Sequence[Any], count: int, where: str) -> list[str]:
    if len(ids) != count:
        raise InputError(
            f"{where}: expected one id per image, but got {len(ids)} ids for {count} images; "
            "give both in the same order"
        )
    names: list[str] = check_ids(pd.Series(list(ids), dtype=object), f"{where}, ids").tolist()
    return names


def _axes(pixels: NDArray[Any], party: str) -> Axes:
    if len(pixels) == 0 or pixels.ndim not in (3, 4) or pixels.dtype.kind not in "iubf":
        raise InputError(
            f"party {party!r}: expected numbers of shape (n, C, H, W), (n, H, W) or (n, H, W, C), "
            f"but got {pixels.dtype} of shape {pixels.shape}; convert the images"
        )
    if pixels.ndim == 3:
        return "HW"
    last = pixels.shape[3] in CHANNELS and pixels.shape[1] not in CHANNELS
    return "HWC" if last else "CHW"


def _range(pixels: NDArray[Any], party: str) -> tuple[float, float]:
    if pixels.dtype == np.uint8:
        return 0.0, 255.0
    _refuse_infinite(pixels, party)
    if np.isnan(pixels).all():
        raise InputError(f"party {party!r}: expected pixels, but all are missing; check the images")
    low, high = float(np.nanmin(pixels)), float(np.nanmax(pixels))
    if low >= 0.0 and high <= 1.0:
        return 0.0, 1.0
    return low, high if high > low else low + 1.0


def _refuse_infinite(pixels: NDArray[Any], party: str) -> None:
    infinite = int(np.isinf(pixels).sum())
    if infinite:
        raise InputError(
            f"party {party!r}: expected finite pixels, but {infinite} are infinite; "
            "replace by a number, or NaN where missing"
        )


def _channels_first(pixels: NDArray[Any], axes: Axes) -> NDArray[Any]:
    if axes == "HW":
        return pixels[:, None]
    return np.moveaxis(pixels, -1, 1) if axes == "HWC" else pixels
