"""Texts that are numbers or durations: "$1,234", "12,5", "3 %", "90 min"."""

import re
from collections.abc import Iterable

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Floats = NDArray[np.float64]

POINT, COMMA = ".", ","
CURRENCIES = "$€£¥"
POINT_CURRENCIES = "$£¥"
"""Currencies of countries that write 1,234.50."""
_AFFIXES = re.compile(rf"([-+]?)\s*([{CURRENCIES}]?)\s*([-+]?[\d.,'\s]*\d)\s*([{CURRENCIES}%]?)")
_NEGATIVE = re.compile(r"\([^-+()]+\)")
"""A number in parentheses, as accountants write negative ones."""
_BODIES = {
    POINT: re.compile(r"[-+]?(?:\d{1,3}(?:[,'\s]\d{3})+|\d+)(?:\.\d+)?"),
    COMMA: re.compile(r"[-+]?(?:\d{1,3}(?:[.\s]\d{3})+|\d+)(?:,\d+)?"),
}
"""A number with this decimal mark."""
_GROUPS = {POINT: re.compile(r"[,'\s]"), COMMA: re.compile(r"[.\s]")}
"""Thousands separators beside this decimal mark."""
_UNIT = r"(?:weeks?|w|days?|d|hours?|hrs?|hr|h|minutes?|mins?|min|m|seconds?|secs?|sec|s)"
_DURATION = re.compile(
    rf"\d+:[0-5]\d(?::[0-5]\d(?:\.\d+)?)?|(?:\d+(?:\.\d+)?\s*{_UNIT}\s*)+", re.IGNORECASE
)
_CLOCK = re.compile(r"\d+:[0-5]\d")


def parse_number(text: str, decimal: str) -> float | None:
    """Parse a number with a decimal mark, thousands separators, a currency or a percent sign.

    A number in parentheses is negative.
    """
    text = text.strip()
    if _NEGATIVE.fullmatch(text):
        number = parse_number(text[1:-1], decimal)
        return None if number is None else -number
    match = _AFFIXES.fullmatch(text)
    if (
        match is None
        or not _BODIES[decimal].fullmatch(match[3])
        or (match[1] and match[3][0] in "+-")
    ):
        return None
    digits = _GROUPS[decimal].sub("", match[3]).replace(decimal, ".")
    return float(match[1] + digits)


def parse_number_texts(texts: Iterable[str], decimal: str) -> Floats:
    """Parse numbers with a decimal mark; NaN where a text is not a number."""
    parsed = (parse_number(text, decimal) for text in texts)
    return np.array([np.nan if each is None else each for each in parsed], dtype=np.float64)


def affixes(text: str) -> tuple[str, str]:
    """Return the sign before and after a number: a currency or %."""
    match = _AFFIXES.fullmatch(text.strip().removeprefix("(").removesuffix(")").strip())
    return ("", "") if match is None else (match[2], match[4])


def write_numbers(values: Floats, whole: bool, decimal: str, prefix: str, suffix: str) -> pd.Series:
    """Write numbers as text that `parse_number` reads, without thousands separators.

    Amounts of a currency have two decimals.
    """
    money = bool(prefix) or (suffix != "" and suffix in CURRENCIES)
    if money and not whole:
        texts = [f"{each:.2f}" for each in values]
    else:
        texts = [str(int(each)) if whole else str(float(each)) for each in np.round(values, 6)]
    return pd.Series([prefix + each.replace(".", decimal) + suffix for each in texts], dtype="str")


def looks_like_duration(texts: Iterable[str]) -> bool:
    """Tell whether all texts are durations or times of day, such as "1:30:00" or "90 min"."""
    return all(_DURATION.fullmatch(text.strip()) for text in texts)


def parse_durations(cells: pd.Series) -> Floats:
    """Parse durations as seconds; "1:30" is one hour and a half; NaN where missing or invalid."""
    if not pd.api.types.is_timedelta64_dtype(cells.dtype):
        texts = cells.astype("str").str.strip()
        clock = texts.str.fullmatch(_CLOCK.pattern).fillna(False).to_numpy(dtype=bool)
        texts = texts.where(~clock, texts + ":00")
        cells = pd.to_timedelta(texts.where(cells.notna()), errors="coerce")
    seconds: Floats = cells.dt.total_seconds().to_numpy(dtype=np.float64)
    return seconds
