"""Find columns that repeat the label; they are rarely known at prediction."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

MAX_ROWS = 32_768
"""Rows that are checked."""
MIN_ROWS, MIN_ROWS_PER_VALUE, MIN_ROWS_PER_CLASS = 50, 10, 5
MAX_VALUES = 64


def find_label_leaks(frame: pd.DataFrame, y: NDArray[np.int64]) -> Iterator[tuple[str, str]]:
    """Yield each column whose values, or gaps, tell the class, and a message.

    `y` are the class numbers of the rows, −1 for none.
    """
    labeled = np.flatnonzero(y >= 0)[:MAX_ROWS]
    rows, classes = frame.iloc[labeled], y[labeled]
    for name in frame.columns:
        codes, values = pd.factorize(rows[name])
        if not 1 <= len(values) <= MAX_VALUES:
            continue
        observed = codes >= 0
        # A column may repeat the label by its values, or by which of its cells are missing.
        if _repeats(codes[observed], classes[observed]) or _repeats(observed, classes):
            shown = " and ".join(repr(str(each)) for each in values[:2])
            yield (
                str(name),
                f"each value, such as {shown}, or each gap belongs to one class in all "
                f"{len(rows):,} rows checked, so it repeats the label; ignore it unless "
                "it is known at prediction "
                '(kind "identifier" in `kinds`)',
            )


def _repeats(codes: NDArray[Any], classes: NDArray[np.int64]) -> bool:
    """Tell whether codes, not more than classes, have rows of one class each."""
    distinct = len(np.unique(codes))
    sizes = np.unique(classes, return_counts=True)[1]
    if not 2 <= distinct <= len(sizes) or len(codes) < max(MIN_ROWS, MIN_ROWS_PER_VALUE * distinct):
        return False
    pairs = np.unique(np.stack([codes.astype(np.int64), classes]), axis=1).shape[1]
    return bool(sizes.min() >= MIN_ROWS_PER_CLASS and pairs == distinct)
