"""Dates of cells, as seconds since 1970 in UTC."""

import re
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from xvfl_serve.encoding.cells import plain_value, text_of
from xvfl_serve.errors import BundleError

ISO = "ISO8601"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST, LAST = (
    (datetime(*day, tzinfo=UTC) - EPOCH).total_seconds() for day in ((1, 1, 2), (9999, 12, 31))
)
"""Other dates count as unreadable: in some time zones, `datetime` cannot represent them."""
_OFFSET = re.compile(r"(?:UTC)?([-+])(\d\d):?(\d\d)")
_ISO = re.compile(
    r"([0-9]{4})(?:([-/.])([0-9]{1,2})(?:\2([0-9]{1,2}))?|([0-9]{2})([0-9]{2}))?"
    r"(?:[T ]([0-9]{1,2}(?::[0-9]{2}(?::[0-9]{2}(?:\.[0-9]+)?)?)?|[0-9]{4}(?:[0-9]{2})?)"
    r"\s?(Z|UTC|[-+][0-9]{2}(?::?[0-9]{2})?)?)?"
)
"""Date, time and zone; a date may end after the year or the month."""


def parse_date(cell: Any, date_format: str) -> float | None:
    """Parse a cell as a date: seconds since 1970; None if it is not one. No time zone means UTC.

    Dates of ISO 8601 may have one digit for the month, day or hour, and slashes or points between
    year, month and day. Other formats are those of `datetime.strptime`.

    Raises
    ------
    TypeError
        The cell is a boolean, a list or another value that is never a date.
    """
    cell = plain_value(cell)
    if isinstance(cell, bool) or not isinstance(cell, str | int | float | date | Decimal | bytes):
        raise TypeError(f"expected a date, got a {type(cell).__name__}")
    try:
        if isinstance(cell, datetime):
            moment = _microseconds(cell)
        elif isinstance(cell, date):
            moment = datetime(cell.year, cell.month, cell.day)
        elif date_format == ISO:
            moment = _parse_iso(text_of(cell).strip())
        else:
            moment = datetime.strptime(text_of(cell).strip(), date_format)
        seconds = (_to_utc(moment) - EPOCH).total_seconds()
    except (ValueError, OverflowError):
        return None
    return seconds if FIRST <= seconds < LAST else None


def read_zone(name: str | None) -> tzinfo:
    """Return a time zone by its name, such as Europe/Berlin or UTC+02:00; UTC for None."""
    if name in (None, "UTC", "utc"):
        return UTC
    offset = _OFFSET.fullmatch(str(name))
    if offset is not None:
        sign = -1 if offset[1] == "-" else 1
        return timezone(sign * timedelta(hours=int(offset[2]), minutes=int(offset[3])))
    try:
        return ZoneInfo(str(name))
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise BundleError(
            f"time zone {name!r} is unknown on this machine; install it: pip install tzdata"
        ) from error


def _parse_iso(text: str) -> datetime:
    match = _ISO.fullmatch(text)
    if match is None:
        raise ValueError(text)
    year, _, month, day, compact_month, compact_day, clock, zone = match.groups()
    day = day or compact_day
    if clock is None:
        return datetime(int(year), int(month or compact_month or 1), int(day or 1))
    if day is None:
        raise ValueError(text)
    whole, _, fraction = clock.partition(".")
    digits = whole.split(":") if ":" in whole else [whole[at : at + 2] for at in (0, 2, 4)]
    hour, minute, second = (int(each or 0) for each in (*digits, "", "")[:3])
    microsecond = int(fraction[:6].ljust(6, "0"))
    return datetime(
        *(int(year), int(month or compact_month), int(day)),
        *(hour, minute, second, microsecond),
        tzinfo=UTC if zone is None else _offset(zone),
    )


def _offset(zone: str) -> tzinfo:
    if zone in ("Z", "UTC"):
        return UTC
    hours, minutes = int(zone[1:3]), int(zone[-2:]) if len(zone) > 3 else 0
    if minutes > 59:
        raise ValueError(zone)
    return timezone((-1 if zone[0] == "-" else 1) * timedelta(hours=hours, minutes=minutes))


def _microseconds(moment: datetime) -> datetime:
    """Return a plain datetime; those of pandas have nanoseconds."""
    day = date(moment.year, moment.month, moment.day)
    return datetime.combine(day, moment.timetz())


def _to_utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
