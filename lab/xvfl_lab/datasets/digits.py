"""Scanned handwritten digits (E. Alpaydin, C. Kaynak; UCI), split between two or four parties.

1,797 images of 8 × 8 gray values, from scikit-learn, which is imported when used.
"""

import numpy as np
from numpy.typing import NDArray

from xvfl.primitives.layout import Feature, Layout, NumberBins
from xvfl_lab.task import Task

GRAY_VALUES = NumberBins(tuple(value / 16 for value in range(17)))
"""All values that a pixel can have."""


def digits() -> Task:
    """Load the digits: the left half at one party, the right half at the other."""
    images, y = _images()
    return _task("digits", {"left": images[:, :, :4], "right": images[:, :, 4:]}, y)


def quarters() -> Task:
    """Load the digits: a quarter of each image at each of four parties."""
    images, y = _images()
    halves = {"top": images[:, :4], "bottom": images[:, 4:]}
    parts: dict[str, NDArray[np.float32]] = {}
    for name, half in halves.items():
        parts |= {f"{name}-left": half[:, :, :4], f"{name}-right": half[:, :, 4:]}
    return _task("digits-quarters", parts, y)


def _images() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    from sklearn.datasets import load_digits

    images, y = load_digits(return_X_y=True)
    return (images.reshape(-1, 8, 8) / 16).astype(np.float32), y.astype(np.int64)


def _task(name: str, parts: dict[str, NDArray[np.float32]], y: NDArray[np.int64]) -> Task:
    values = {party: part.reshape(len(y), -1).copy() for party, part in parts.items()}
    count = next(iter(values.values())).shape[1]
    features = tuple(Feature(f"pixel {i}", "numeric", 1) for i in range(count))
    layout = Layout(features, bins=(GRAY_VALUES,) * count)
    return Task(name, dict.fromkeys(parts, layout), values, y, test_share=0.3)
