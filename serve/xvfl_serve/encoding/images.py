"""Pixels → numbers in [0, 1], and back.

Shapes: n images, C channels, H height, W width. The raw features are the H·W pixels.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from xvfl_serve.encoding.columns import EncodedColumn

Axes = Literal["HW", "CHW", "HWC"]


@dataclass(frozen=True)
class ImageScale:
    """Scales images of one shape.

    Parameters
    ----------
    party : str
        The party's name, for messages.
    axes : {"HW", "CHW", "HWC"}
        The axes of the party's arrays, after the first one.
    shape : (int, int, int)
        Channels, height and width.
    low, high : float
        The range of the pixels that is scaled to [0, 1].
    dtype : str
        The type of the party's arrays.
    """

    party: str
    axes: Axes
    shape: tuple[int, int, int]
    low: float
    high: float
    dtype: str

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Build from the JSON form of an encoder."""
        fields = {name: value for name, value in data.items() if name != "type"}
        return cls(**{**fields, "shape": tuple(data["shape"])})

    @property
    def own_shape(self) -> tuple[int, ...]:
        """The shape of an image with the party's axes."""
        sizes = dict(zip("CHW", self.shape, strict=True))
        return tuple(sizes[axis] for axis in self.axes)

    def scale(self, pixels: NDArray[Any], given: NDArray[np.bool_] | None = None) -> EncodedColumn:
        """Scale images (n, *own_shape) to [0, 1]; a pixel missing in one channel counts as missing.

        The values have the shape (n, C, H, W), the observed pixels (n, H·W).
        """
        first = channels_first(pixels, self.axes).astype(np.float32)
        present = np.asarray(~np.isnan(first).any(axis=1), dtype=bool)
        if given is not None:
            present &= given.astype(bool)
        scaled = np.where(present[:, None], (first - self.low) / (self.high - self.low), 0.0)
        far = np.asarray(((scaled < -1) | (scaled > 2)).any(axis=(1, 2, 3)))
        values = np.clip(scaled, 0.0, 1.0).astype(np.float32)
        return EncodedColumn(values, present.reshape(len(values), -1), {"pixels": far})

    def restore(self, values: NDArray[Any]) -> NDArray[Any]:
        """Convert (n, C·H·W) or (n, C, H, W) numbers to images of the party's axes and type."""
        first = np.asarray(values, dtype=np.float64).reshape(-1, *self.shape)
        own = np.clip(first, 0.0, 1.0) * (self.high - self.low) + self.low
        if self.axes == "HW":
            own = own[:, 0]
        elif self.axes == "HWC":
            own = np.moveaxis(own, 1, -1)
        dtype = np.dtype(self.dtype)
        return (np.rint(own) if dtype.kind in "iub" else own).astype(dtype)


def channels_first(pixels: NDArray[Any], axes: Axes) -> NDArray[Any]:
    """Move the channels before height and width."""
    if axes == "HW":
        return pixels[:, None]
    return np.moveaxis(pixels, -1, 1) if axes == "HWC" else pixels
