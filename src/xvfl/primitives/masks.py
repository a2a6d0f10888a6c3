"""Random masks of observed features."""

from torch import Tensor


def drop_features(observed: Tensor, drawn: Tensor) -> Tensor:
    """Drop observed features of each row at a rate of its own. (B, p)

    `drawn` (B, 1 + p), in [0, 1): the row's rate, then a number for each of its features.
    """
    return observed & (drawn[:, 1:] >= drawn[:, :1])
