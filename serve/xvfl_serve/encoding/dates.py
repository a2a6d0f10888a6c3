"""Dates of cells, in UTC."""

import re
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from xvfl_serve.errors import BundleError

ISO = "ISO8601"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_OFFSET = re.compile(r"(?:UTC)?([-+])(\d\d):?(\d\d)")
_YEAR_MONTH = re.compile(r"(\d{4})(?:-?(\d{2}))?")


def parse_date(cell: Any, date_format: str) -> datetime | None:
    """Parse a cell as a date in UTC; None if it is not one. No time zone means UTC."""
    if isinstance(cell, datetime):
        return _to_utc(cell)
    if isinstance(cell, date):
        return datetime(cell.year, cell.month, cell.day, tzinfo=UTC)
    text = str(cell).strip()
    try:
        if date_format != ISO:
            return _to_utc(datetime.strptime(text, date_format))
        partial = _YEAR_MONTH.fullmatch(text)
        if partial is not None:
            return datetime(int(partial[1]), int(partial[2] or 1), 1, tzinfo=UTC)
        return _to_utc(datetime.fromisoformat(text))
    except (ValueError, OverflowError):
        return None


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


def _to_utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
