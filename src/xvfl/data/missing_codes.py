"""Values that probably stand for missing cells: -1 among non-negative numbers, 999, "?"."""

import re
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from xvfl_serve.encoding.scale import Floats

WORDS = {
    *("?", "??", "???", "-", "--", "---", ".", "..", "*", "#n/a", "n.a.", "n.a", "n/a", "na"),
    *("none", "null", "nil", "nan", "unknown", "unk", "unavailable", "missing", "undefined"),
    *("unspecified", "undetermined"),
    *("no data", "no answer", "no response", "not available", "not applicable", "not known"),
    *("not recorded", "not reported", "not stated", "not specified", "not given", "don't know"),
    "refused",
}
"""Texts that stand for a missing value, in lower case."""
NINES = re.compile(r"-?9{2,}(\.9)?|-9")
"""Numbers of repeated nines, and -9; no prices such as 99.99."""
TEXT_NINES = re.compile(r"-?9{3,}")
MAX_CODES = 4
"""Codes of one column."""
MIN_COUNT, MIN_OTHERS = 3, 4
"""Cells that have a code, and different values besides codes."""
NEIGHBORS = 5
"""Values next to a code with which it is compared."""
MIN_EDGE = 0.02
"""Share of cells from which -1 is a code even if it is rarer than 0."""
MIN_SHARE = 0.005
"""Share of cells of a code that is no number of nines."""


def missing_words(words: Iterable[str]) -> list[str]:
    """List the texts that probably stand for a missing value."""
    return [
        each
        for each in words
        if each.strip().casefold() in WORDS or TEXT_NINES.fullmatch(each.strip())
    ]


def missing_numbers(values: Floats) -> Iterator[tuple[float, float]]:
    """Yield numbers that probably stand for a missing value, and their share of the values."""
    distinct, counts = np.unique(values, return_counts=True)
    for _ in range(MAX_CODES):
        for end in (-1, 0):
            if len(distinct) > 2 and _is_code(distinct, counts, end, len(values)):
                yield float(distinct[end]), counts[end] / len(values)
                distinct, counts = np.delete(distinct, end), np.delete(counts, end)
                break
        else:
            return


def _is_code(distinct: Floats, counts: NDArray[np.int64], end: int, rows: int) -> bool:
    """Tell whether the smallest (end 0) or the largest number (end −1) is a code."""
    value, count = float(distinct[end]), int(counts[end])
    rest, others = np.delete(distinct, end), np.delete(counts, end)
    if count < MIN_COUNT:
        return False
    gap, spread = abs(value - rest[end]), rest[-1] - rest[0]
    near = slice(NEIGHBORS) if end == 0 else slice(-NEIGHBORS, None)
    rivals, steps = others[near], np.diff(rest[near])
    nines = NINES.fullmatch(f"{value:.10g}") is not None
    if nines and gap >= 10 * spread:
        return True
    if len(rest) < MIN_OTHERS:
        return False
    if end == 0 and rest[0] >= 0 and (value == -1 or (value < 0 and nines)):
        whole = bool((np.trunc(rest) == rest).all())
        edge = whole and (rest[0] > 0 or count >= MIN_EDGE * rows)
        return nines or edge or count >= 2 * (rivals[0] if whole else rivals.max())
    if nines:
        stands_out = count >= 2 * rivals.max() and gap > 2 * steps.max()
        return bool(gap >= spread or stands_out)
    return bool(value != 0 and gap >= 2 * spread and count >= MIN_SHARE * rows)
