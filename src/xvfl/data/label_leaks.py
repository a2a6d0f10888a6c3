"""Find columns that repeat or determine the label; they are rarely known at prediction."""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from numpy.typing import NDArray

MAX_ROWS = 32_768
"""Rows that are checked."""
MIN_ROWS, MIN_ROWS_PER_VALUE, MIN_ROWS_PER_CLASS = 50, 10, 5
MAX_VALUES = 64


def find_label_leaks(frame: pd.DataFrame, y: NDArray[np.int64]) -> Iterator[tuple[str, str]]:
    """Yield each column of which every value belongs to one class, and a message.

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
        if _determines(codes[observed], classes[observed]) or _determines(codes + 1, classes):
            shown = " and ".join(repr(str(each)) for each in values[:2])
            yield (
                str(name),
                f"each value, such as {shown}, belongs to one class in all {len(rows):,} rows "
                "checked, so it repeats the label; ignore it unless it is known at prediction "
                '(kind "identifier" in `kinds`)',
            )


def _determines(codes: NDArray[np.int64], classes: NDArray[np.int64]) -> bool:
    """Tell whether each code has rows of one class only, and at least two classes occur."""
    distinct = len(np.unique(codes))
    if len(codes) < max(MIN_ROWS, MIN_ROWS_PER_VALUE * distinct) or distinct < 2:
        return False
    sizes = np.unique(classes, return_counts=True)[1]
    if len(sizes) < 2 or sizes.min() < MIN_ROWS_PER_CLASS:
        return False
    pairs = len(np.unique(np.stack([codes, classes]), axis=1).T)
    return pairs == distinct
