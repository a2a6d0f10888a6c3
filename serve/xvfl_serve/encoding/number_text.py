"""Texts that are numbers or durations: "$1,234", "12,5", "3 %", "90 min"."""

import re
from collections.abc import Iterable

POINT, COMMA = ".", ","
CURRENCIES = "$€£¥"
POINT_CURRENCIES = "$£¥"
"""Currencies of countries that write 1,234.50."""
MAX_LENGTH = 100
"""Longer texts are not parsed as numbers or durations."""
_MINUS = "\N{MINUS SIGN}"
_AFFIXES = re.compile(
    rf"([-+]?)\s*(?:([{CURRENCIES}])\s*)?([-+]?[0-9.,'](?:[0-9.,'\s]*[0-9])?)\s*([{CURRENCIES}%]?)"
)
_NEGATIVE = re.compile(r"\([^-+()]+\)")
"""A number in parentheses, as accountants write negative ones."""
_BODIES = {
    POINT: re.compile(r"[-+]?(?:[1-9][0-9]{0,2}(?:[,'\s][0-9]{3})+|[0-9]+)(?:\.[0-9]+)?"),
    COMMA: re.compile(r"[-+]?(?:[1-9][0-9]{0,2}(?:[.\s][0-9]{3})+|[0-9]+)(?:,[0-9]+)?"),
}
"""A number with this decimal mark; no thousands begin with 0, so 0,125 has a decimal comma."""
_GROUPS = {POINT: re.compile(r"[,'\s]"), COMMA: re.compile(r"[.\s]")}
"""Thousands separators beside this decimal mark."""
_PLAIN = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_CLOCK = r"([0-9]+):([0-5][0-9])(?::([0-5][0-9](?:\.[0-9]+)?))?"
_DAYS_CLOCK = re.compile(rf"(?:([0-9]+) days?,? )?(\+?){_CLOCK}")
_ISO = re.compile(
    r"P(?=.)(?:([0-9]+)W)?(?:([0-9]+)D)?"
    r"(?:T(?=.)(?:([0-9]+)H)?(?:([0-9]+)M)?(?:([0-9]+(?:\.[0-9]+)?)S)?)?"
)
_SECONDS = {
    **dict.fromkeys(("week", "weeks", "w"), 604_800.0),
    **dict.fromkeys(("day", "days", "d"), 86_400.0),
    **dict.fromkeys(("hour", "hours", "hr", "hrs", "h"), 3600.0),
    **dict.fromkeys(("minute", "minutes", "min", "mins", "m"), 60.0),
    **dict.fromkeys(("second", "seconds", "sec", "secs", "s"), 1.0),
    **dict.fromkeys(("millisecond", "milliseconds", "ms"), 1e-3),
    **dict.fromkeys(("microsecond", "microseconds", "us", "µs"), 1e-6),
}
"""Seconds of each unit. Months and years have no fixed length."""
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-zµ]+)\s*")


def parse_number(text: str, decimal: str = "") -> float | None:
    """Parse a number; None if the text is not one.

    With a decimal mark, it may have thousands separators, a currency or a percent sign, and a
    number in parentheses is negative. The minus sign − counts as a hyphen.
    """
    text = text.strip().replace(_MINUS, "-")
    if len(text) > MAX_LENGTH:
        return None
    if not decimal:
        return float(text) if _PLAIN.fullmatch(text) else None
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


def affixes(text: str) -> tuple[str, str]:
    """Return the sign before and after a number: a currency or %."""
    text = text.strip().replace(_MINUS, "-").removeprefix("(").removesuffix(")").strip()
    match = _AFFIXES.fullmatch(text) if len(text) <= MAX_LENGTH else None
    return ("", "") if match is None else (match[2] or "", match[4])


def write_number(number: float, whole: bool, decimal: str, prefix: str, suffix: str) -> str:
    """Write a number as text that `parse_number` reads, without thousands separators.

    Amounts of a currency have two decimals.
    """
    money = bool(prefix) or (suffix != "" and suffix in CURRENCIES)
    plain = round(number) if whole else round(number, 6)
    text = f"{number:.2f}" if money and not whole else str(plain)
    return prefix + text.replace(".", decimal) + suffix


def parse_duration(text: str) -> float | None:
    """Parse a duration as seconds; None if it is not one, or has no unit.

    Durations are clock times ("1:30" is one hour and a half, "1 day 2:00:00"), numbers with units
    ("90 min", "1 h 30 min", "2 weeks"), and those of ISO 8601 ("PT1H30M"). A minus in front negates
    all of it, except a clock time after +, as pandas writes "-1 days +22:30:00".
    """
    text = text.strip().replace(_MINUS, "-")
    if len(text) > MAX_LENGTH:
        return None
    sign = -1.0 if text.startswith("-") else 1.0
    text = text.removeprefix("-").lstrip() if sign < 0 else text.removeprefix("+")
    clock = _DAYS_CLOCK.fullmatch(text)
    if clock is not None:
        days, plus, hours, minutes, seconds = clock.groups(default="0")
        if plus and clock[1] is None:
            return None
        time = int(hours) * 3600 + int(minutes) * 60 + float(seconds)
        return sign * int(days) * 86_400 + (time if plus else sign * time)
    iso = _ISO.fullmatch(text)
    if iso is not None:
        numbers = map(float, iso.groups(default="0"))
        units = (604_800.0, 86_400.0, 3600.0, 60.0, 1.0)
        return sign * sum(n * unit for n, unit in zip(numbers, units, strict=True))
    return _parse_parts(text.lower(), sign)


def looks_like_duration(texts: Iterable[str]) -> bool:
    """Tell whether all texts are durations or times of day, such as "1:30:00" or "90 min"."""
    return all(parse_duration(text) is not None for text in texts)


def write_duration(seconds: float) -> str:
    """Write a duration in whole seconds, as "1:30:00"."""
    total = round(abs(seconds))
    sign = "-" if seconds < 0 and total else ""
    return f"{sign}{total // 3600}:{total // 60 % 60:02d}:{total % 60:02d}"


def _parse_parts(text: str, sign: float) -> float | None:
    """Parse numbers with units, as in "1 h 30 min"."""
    total, at = 0.0, 0
    while at < len(text):
        part = _PART.match(text, at)
        if part is None or part[2] not in _SECONDS:
            return None
        total += float(part[1]) * _SECONDS[part[2]]
        at = part.end()
    return sign * total if at else None
