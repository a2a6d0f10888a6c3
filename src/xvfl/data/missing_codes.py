"""Values that probably stand for missing cells: -1 among non-negative numbers, 999, "?"."""

import re
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from xvfl_serve.encoding.scale import Floats

WORDS = {
    *("#n/a", "n.a.", "n.a", "n/a", "na", "nan", "none", "null", "nil", "unknown", "unk", "unknwn"),
    *("unavailable", "missing", "undefined", "undef", "unspecified", "undetermined", "refused"),
    *("no data", "no answer", "no response", "no information", "not available", "not applicable"),
    *("not known", "not recorded", "not reported", "not stated", "not specified", "not given"),
    *(
        "not answered",
        "prefer not to say",
        "don't know",
        "dont know",
        "empty",
        "blank",
        "tba",
        "tbd",
    ),
    *("unbekannt", "keine angabe", "k.a.", "inconnu", "desconocido", "sconosciuto", "onbekend"),
}
"""Texts that stand for a missing value, in lower case, without brackets and underscores."""
MARKS = re.compile(r"[?*.\-\u2013\u2014/]+")
"""Texts without a letter or a digit that stand for a missing value."""
NINES = re.compile(r"-?9{2,}(\.9)?|-9|-?([678])\2{2,}")
"""Numbers of repeated nines, -9, and 777; no prices such as 99.99."""
SURVEY = re.compile(r"-?9*[6-9]|-?([678])\1+|-1")
"""Codes of surveys that occur together: 8 and 9, 97 to 99, 777 and 999, -1 and -9."""
TEXT_NINES = re.compile(r"-?9{3,}")
MAX_CODES = 4
"""Codes of one column."""
ENDS = ((-1,), (0,), (-2, -1), (0, 1), (-3, -2, -1), (0, 1, 2))
"""Places of numbers that are judged together."""
MIN_COUNT, MIN_OTHERS, MIN_MANY = 3, 4, 10
"""Cells that have a code; different values besides codes, and besides those without nines."""
NEIGHBORS = 5
"""Values next to a code with which it is compared."""
MIN_EDGE = 0.02
"""Share of cells from which -1 is a code even if it is rarer than 0."""
MIN_SHARE, MAX_SHARE, MAX_ZEROS = 0.005, 0.5, 0.2
"""Share of cells of a code that is no number of nines, and of 0."""
MIN_GAP, MIN_ZERO_GAP = 5, 0.1
"""Distance of such a code, and of 0, from the others, relative to their range."""
MIN_SCALE_GAP = 3
"""Distance of 9 from the scale of a question, such as 1 to 5."""


def missing_words(words: Iterable[str]) -> list[str]:
    """List the texts that probably stand for a missing value."""
    texts = [each.strip() for each in words]
    # Beside +, a dash is the result of a test.
    return [each for each, text in zip(words, texts, strict=True) if _is_word(text, "+" in texts)]


def _is_word(text: str, signs: bool) -> bool:
    plain = text.strip("<>()[] ").replace("_", " ").casefold()
    marks = MARKS.fullmatch(text) is not None and not (signs and text == "-")
    return marks or plain in WORDS or TEXT_NINES.fullmatch(text) is not None


def missing_numbers(values: Floats) -> Iterator[tuple[float, float]]:
    """Yield numbers that probably stand for a missing value, and their share of the values."""
    distinct, counts = np.unique(values, return_counts=True)
    for _ in range(MAX_CODES):
        for at in ENDS:
            if len(distinct) > len(at) + 1 and _are_codes(distinct, counts, at, len(values)):
                for each in at:
                    yield float(distinct[each]), counts[each] / len(values)
                distinct, counts = np.delete(distinct, at), np.delete(counts, at)
                break
        else:
            return


def _are_codes(distinct: Floats, counts: NDArray[np.int64], at: tuple[int, ...], rows: int) -> bool:
    """Tell whether the smallest or the largest numbers are codes."""
    codes, count = distinct[list(at)], int(counts[list(at)].min())
    if count < MIN_COUNT:
        return False
    rest, others = np.delete(distinct, at), np.delete(counts, at)
    low = at[0] == 0
    gap = rest[0] - codes.max() if low else codes.min() - rest[-1]
    spread = rest[-1] - rest[0]
    near = slice(NEIGHBORS) if low else slice(-NEIGHBORS, None)
    rivals, steps = others[near], np.diff(rest[near])
    texts = [f"{each:.10g}" for each in codes]
    nines = all(map(NINES.fullmatch, texts))
    several = len(codes) > 1
    survey = all(map(SURVEY.fullmatch, texts))
    if nines and gap >= 10 * spread:
        return True
    if len(rest) < MIN_OTHERS or (several and not survey):
        return False
    if survey and not low and np.array_equal(rest, np.arange(1, len(rest) + 1)):
        return bool(gap >= min(spread, MIN_SCALE_GAP) and count >= MIN_SHARE * rows)
    if low and rest[0] >= 0 > codes[-1] and (nines or survey):
        return nines or several or _is_minus_one(rest, rivals, count, rows)
    if nines or several:
        stands_out = count >= 2 * rivals.mean() and gap > 2 * steps.max()
        return bool(gap >= spread or stands_out)
    if low and codes[0] == 0:
        alone = gap >= max(3 * steps.max(), MIN_ZERO_GAP * spread) and count >= 2 * rivals.max()
        return bool(alone and count <= MAX_ZEROS * rows)
    far = gap >= MIN_GAP * spread and len(rest) >= MIN_MANY and codes[0] == np.trunc(codes[0])
    return bool(far and MIN_SHARE * rows <= count <= MAX_SHARE * rows)


def _is_minus_one(rest: Floats, rivals: NDArray[np.int64], count: int, rows: int) -> bool:
    """Tell whether -1 below numbers of at least 0 is a code."""
    if not (np.trunc(rest) == rest).all():
        return bool(count >= 2 * rivals.max())
    return bool(rest[0] > 0 or count >= MIN_EDGE * rows or count >= 2 * rivals[0])
