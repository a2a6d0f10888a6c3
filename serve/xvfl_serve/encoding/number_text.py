"""Texts that are numbers or durations: "$1,234", "12,5", "3 %", "90 min"."""

import re

POINT, COMMA = ".", ","
_SIGNS = "$€£¥"
_AFFIXES = re.compile(rf"([-+]?)\s*([{_SIGNS}]?)\s*([-+]?[\d.,'\s]*\d)\s*([{_SIGNS}%]?)")
_NEGATIVE = re.compile(r"\([^-+()]+\)")
"""A number in parentheses, as accountants write negative ones."""
_BODIES = {
    POINT: re.compile(r"[-+]?(?:\d{1,3}(?:[,'\s]\d{3})+|\d+)(?:\.\d+)?"),
    COMMA: re.compile(r"[-+]?(?:\d{1,3}(?:[.\s]\d{3})+|\d+)(?:,\d+)?"),
}
"""A number with this decimal mark."""
_GROUPS = {POINT: re.compile(r"[,'\s]"), COMMA: re.compile(r"[.\s]")}
"""Thousands separators beside this decimal mark."""
_PLAIN = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?", re.ASCII)
_CLOCK = re.compile(r"(?:(\d+) days? )?(\d+):([0-5]\d)(?::([0-5]\d(?:\.\d+)?))?")
_SECONDS = {"w": 604_800, "d": 86_400, "h": 3600, "m": 60, "s": 1}
"""Seconds of each unit, by its first letter."""
_PART = re.compile(
    r"\s*(\d+(?:\.\d+)?)\s*"
    r"(weeks?|w|days?|d|hours?|hrs?|hr|h|minutes?|mins?|min|m|seconds?|secs?|sec|s)\s*",
    re.IGNORECASE,
)


def parse_number(text: str, decimal: str = "") -> float | None:
    """Parse a number; None if the text is not one.

    With a decimal mark, it may have thousands separators, a currency or a percent sign, and a
    number in parentheses is negative.
    """
    if not decimal:
        return float(text) if _PLAIN.fullmatch(text) else None
    if _NEGATIVE.fullmatch(text):
        number = parse_number(text[1:-1].strip(), decimal)
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


def parse_duration(text: str) -> float | None:
    """Parse a duration as seconds; "1:30" is one hour and a half; None if it is not one."""
    clock = _CLOCK.fullmatch(text)
    if clock is not None:
        days, hours, minutes, seconds = clock.groups(default="0")
        return int(days) * 86_400 + int(hours) * 3600 + int(minutes) * 60 + float(seconds)
    total, at = 0.0, 0
    while at < len(text):
        part = _PART.match(text, at)
        if part is None:
            return None
        total += float(part[1]) * _SECONDS[part[2][0].lower()]
        at = part.end()
    return total if at else None
