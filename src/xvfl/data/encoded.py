"""A party's encoded rows."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Encoded:
    """n encoded rows, in the order of their ids; 0 where a feature is missing."""

    ids: list[str]
    values: NDArray[np.float32]
    """(n, dense) numbers, or (n, channels, height, width) for images; all in [0, 1]."""
    codes: NDArray[np.int64]
    """(n, hashed) codes of the hashed features."""
    observed: NDArray[np.bool_]
    """(n, raw) which raw features are observed."""
    notes: list[str]
    """Remarks on unusual cells by row; '' for none."""
