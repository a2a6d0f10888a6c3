"""A party's rows after encoding, as its encoder hands them on."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Encoded:
    """n rows in the order of their ids; 0 wherever nothing was observed."""

    ids: list[str]
    values: NDArray[np.float32]
    """(n, dense) numbers, or (n, channels, height, width) for images; all in [0, 1]."""
    codes: NDArray[np.int64]
    """(n, hashed) buckets of the hashed features."""
    observed: NDArray[np.bool_]
    """(n, raw) which raw features are there."""
    notes: list[str]
    """Per row, what was odd about it; '' if nothing."""
