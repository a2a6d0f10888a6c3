"""The features of a party whose cells are permuted together: a column, or a patch of an image."""

import math
from collections.abc import Iterator

from xvfl.primitives.layout import Layout

PATCHES = 4
"""Images are divided into at most 4 × 4 patches."""


def feature_groups(layout: Layout) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the name and the raw features of each column or patch."""
    if layout.image is None:
        yield from ((each.name, (number,)) for number, each in enumerate(layout.features))
        return
    _, height, width = layout.image
    tall, wide = math.ceil(height / PATCHES), math.ceil(width / PATCHES)
    for top in range(0, height, tall):
        for left in range(0, width, wide):
            bottom, right = min(top + tall, height), min(left + wide, width)
            pixels = (y * width + x for y in range(top, bottom) for x in range(left, right))
            yield f"rows {top}–{bottom - 1}, columns {left}–{right - 1}", tuple(pixels)
