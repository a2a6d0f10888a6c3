"""Shared by the image data sets: packs, JPEG, 32 × 32 pixels, vertical strips.

Shapes: N images, H height, W width; pixels are uint8, channels R, G, B first.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from xvfl.errors import InputError
from xvfl.primitives.layout import Layout
from xvfl_lab.task import Task

Pixels = NDArray[np.uint8]

SIDE = 32
"""Height and width of every prepared image."""
NAMES = {2: ("left", "right"), 4: ("strip1", "strip2", "strip3", "strip4")}


@dataclass(frozen=True)
class ImageSet:
    """Images and labels of a data set."""

    name: str
    pixels: Pixels
    """(N, 3, 32, 32)."""
    y: NDArray[np.int64]
    test: NDArray[np.bool_]

    def split(self, parties: int) -> Task:
        """Cut every image into vertical strips of equal width, one for each party."""
        strips = map(np.ascontiguousarray, np.split(self.pixels, parties, axis=3))
        values = dict(zip(NAMES[parties], strips, strict=True))
        layouts = dict.fromkeys(values, Layout(image=(3, SIDE, SIDE // parties)))
        return Task(self.name, layouts, values, self.y, test=self.test)


def unpack(differences: Pixels) -> Pixels:
    """Read a pack's `d`, (3, N, H, W): R-G, G, B-G as 2-D first differences, all mod 256."""
    planes = np.cumsum(differences, axis=2, dtype=np.uint8)
    np.cumsum(planes, axis=3, dtype=np.uint8, out=planes)
    planes[0] += planes[1]
    planes[2] += planes[1]
    return np.ascontiguousarray(planes.swapaxes(0, 1))


def halve(pixels: Pixels) -> Pixels:
    """Halve height and width by the rounded mean of 2 × 2 pixels."""
    n, channels, height, width = pixels.shape
    blocks = pixels.reshape(n, channels, height // 2, 2, width // 2, 2)
    total: NDArray[np.uint16] = blocks.sum(axis=(3, 5), dtype=np.uint16)
    return ((total + 2) // 4).astype(np.uint8)


def half_resolution(task: Task) -> Task:
    """Halve the height and width of every image: a quarter of the work."""
    values = {party: halve(each) for party, each in task.values.items()}
    layouts = {party: Layout(image=each.shape[1:]) for party, each in values.items()}
    return replace(task, values=values, layouts=layouts)


def from_jpeg(images: Sequence[bytes], side: int) -> Pixels:
    """Decode JPEG files to (N, 3, side, side); other sizes are scaled with antialiasing."""
    try:
        from PIL import Image
    except ImportError as error:
        raise InputError("reading JPEG files needs Pillow; pip install pillow") from error
    pixels = np.empty((len(images), 3, side, side), dtype=np.uint8)
    for i, data in enumerate(images):
        with Image.open(io.BytesIO(data)) as picture:
            image = picture.convert("RGB")
        if image.size != (side, side):
            image = image.resize((side, side), Image.Resampling.BILINEAR)
        pixels[i] = np.asarray(image).transpose(2, 0, 1)
    return pixels
