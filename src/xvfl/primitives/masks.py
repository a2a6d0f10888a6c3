"""Random masks of observed features."""

from torch import Tensor


def drop_features(observed: Tensor, uniform: Tensor) -> Tensor:
    """Drop observed features of each row at a rate of its own. (B, p)

    `uniform` (B, 1 + p), in [0, 1): the row's rate, then a number for each of its features.
    """
    return observed & (uniform[:, 1:] >= uniform[:, :1])
