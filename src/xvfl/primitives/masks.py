"""Random masks of observed features."""

from torch import Tensor

from xvfl.primitives.layout import Layout

MAX_UNMASKED_SHARE = 0.5
"""Share of the copies that keep all features if nothing is missing in the training rows."""
NO_UNMASKED_COPIES = 0.1
"""Share of missing cells from which every copy is masked."""


def drop_features(observed: Tensor, uniform: Tensor, unmasked: float | Tensor = 0.0) -> Tensor:
    """Drop observed features of each row at a rate of its own. (B, p)

    `uniform` (B, 1 + p), in [0, 1): the row's rate, then a number for each of its features. A share
    `unmasked` of the rows, a number or (B, 1), keeps all features; the rates of the others are
    uniform.
    """
    rate = (uniform[:, :1] - unmasked) / (1 - unmasked)
    return observed & (uniform[:, 1:] >= rate)


def unmasked_share(layout: Layout, missing: float) -> float:
    """Choose the share of copies that keep all features, by the share of missing cells.

    What is missing in training rows will be missing in prediction too. Hashed categories overfit
    without masks.
    """
    if layout.hashed:
        return 0.0
    return MAX_UNMASKED_SHARE * max(0.0, 1 - missing / NO_UNMASKED_COPIES)
