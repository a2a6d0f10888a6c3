"""Scanned handwritten digits (E. Alpaydin, C. Kaynak; UCI), split between two parties.

1,797 images of 8 × 8 gray values, from scikit-learn, which is imported when used.
"""

import numpy as np

from xvfl.primitives.layout import Feature, Layout
from xvfl_lab.task import Task


def digits() -> Task:
    """Load the digits: the left half at one party, the right half at the other."""
    from sklearn.datasets import load_digits

    images, y = load_digits(return_X_y=True)
    images = (images.reshape(-1, 8, 8) / 16).astype(np.float32)
    halves = {"left": images[:, :, :4], "right": images[:, :, 4:]}
    layout = Layout(tuple(Feature(f"pixel {i}", "numeric", 1) for i in range(32)))
    values = {name: half.reshape(len(y), 32).copy() for name, half in halves.items()}
    layouts = dict.fromkeys(halves, layout)
    return Task("digits", layouts, values, y.astype(np.int64), test_share=0.3)
