"""A party's budgets for prediction, apart from those of training.

Budgets are those of a day (UTC). The requests of a day are lines of a file, one for each request,
with its caller and rows; they survive the end of the process. The newest of these files determines
the current day, so setting the clock back refills no budget. The counts of the rows belong to the
table that the operator opened.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from xvfl.errors import ConfigError, RunError
from xvfl.system.files import append_jsonl, read_jsonl
from xvfl.wire.limited_log import LogEvent

REQUESTS = "requests-"
"""Files of requests: this, the day and .jsonl."""
TABLE = "table"
"""Field of a line that says that the operator opened another table."""
KEPT_DAYS = 30
"""Days after which a file of requests is removed."""
MAX_CALLERS = 100
"""Callers with a budget of their own in a day; further ones share the budget of `OTHERS`."""
OTHERS = "(others)"


@dataclass(frozen=True)
class PredictionLimits:
    """Budgets of a party for prediction; a request for n rows counts n times."""

    max_per_row: int = 100
    """Requests for one row in a day (UTC)."""
    max_per_caller: int = 10_000
    """Rows that one caller may request in a day (UTC); a party that is assisted is one caller."""
    max_per_day: int = 100_000
    """Rows that all callers together may request in a day (UTC)."""

    def __post_init__(self) -> None:
        for name in ("max_per_row", "max_per_caller", "max_per_day"):
            if getattr(self, name) < 1:
                raise ConfigError(
                    f"prediction.limits.{name}: expected at least 1, got {getattr(self, name)}"
                )


def utc_today() -> date:
    """Return the day in UTC."""
    return datetime.now(UTC).date()


class PredictionLedger:
    """Counts the requests for each row and of each caller, and refuses rows above the budgets.

    Parameters
    ----------
    limits
        The budgets.
    n_rows
        Number of rows of the prediction table.
    folder
        Folder of the counts.
    today
        Returns the current day.
    log_event
        Receives log events.
    """

    def __init__(
        self,
        limits: PredictionLimits,
        n_rows: int,
        folder: Path,
        today: Callable[[], date] = utc_today,
        log_event: LogEvent = lambda event: None,
    ) -> None:
        self.limits, self._folder, self._today = limits, folder, today
        self._counts = np.zeros(n_rows, dtype=np.uint32)
        self._load_day(max(_recorded_days(folder), default=today()))
        if self._day > today() + timedelta(1):
            reason = (
                f"the clock was ahead, or is behind: no budget refills before {self._day}; check "
                f"the clock, remove {self._path} and start again"
            )
            log_event({"event": "prediction_day_ahead", "reason": reason})
        self._advance()

    def take(self, rows: NDArray[np.int64], caller: str) -> tuple[NDArray[np.bool_], str]:
        """Count a request for rows of the table; a row above a budget counts in none.

        Returns which rows are within the budgets, and which budget refused the others.
        """
        self._advance()
        limits, caller = self.limits, self._known(caller)
        allowed, spent = self._counts[rows] < limits.max_per_row, list[str]()
        if not allowed.all():
            spent.append(f"max_per_row ({limits.max_per_row})")
        left = {
            "max_per_caller": max(limits.max_per_caller - self._callers[caller], 0),
            "max_per_day": max(limits.max_per_day - self._callers.total(), 0),
        }
        name = min(left, key=lambda each: left[each])
        if allowed.sum() > left[name]:
            allowed &= np.cumsum(allowed) <= left[name]
            spent.append(f"{name} ({getattr(limits, name)})")
        if allowed.any():
            self._record(caller, rows[allowed])
        until = f"{self._day + timedelta(1)} 00:00 UTC"
        return allowed, f"{' or '.join(spent)} is used up until {until}" if spent else ""

    def usage(self) -> dict[str, object]:
        """Return what was used of the budgets of this day, for monitoring."""
        return {
            "prediction_day": self._day.isoformat(),
            "prediction_requests_today": self._callers.total(),
            "prediction_requests_allowed": self.limits.max_per_day,
            "prediction_requests_of_a_row": int(self._counts.max(initial=0)),
            "prediction_requests_of_a_row_allowed": self.limits.max_per_row,
            "prediction_requests_by_caller": dict(self._callers),
        }

    def _known(self, caller: str) -> str:
        """Return under which name a caller is counted."""
        new = caller not in self._callers
        return OTHERS if new and len(self._callers) >= MAX_CALLERS else caller

    def _record(self, caller: str, rows: NDArray[np.int64]) -> None:
        try:
            append_jsonl(self._path, {"caller": caller, "rows": rows.tolist()})
        except OSError as error:
            raise RunError(
                f"{self._path}: requests cannot be counted ({error.strerror}), so none is answered"
            ) from error
        self._callers[caller] += len(rows)
        self._counts[rows] += 1

    def _load_day(self, day: date) -> None:
        self._day, self._path = day, self._folder / f"{REQUESTS}{day.isoformat()}.jsonl"
        self._callers = Counter[str]()
        self._counts[:] = 0
        for each in read_jsonl(self._path):
            if TABLE in each:
                self._counts[:] = 0
                continue
            # Version 0.3 wrote the number of rows.
            given = each["rows"]
            rows = np.asarray([] if isinstance(given, int) else given, dtype=np.int64)
            self._callers[self._known(str(each["caller"]))] += (
                given if isinstance(given, int) else len(rows)
            )
            self._counts[rows[rows < len(self._counts)]] += 1

    def _advance(self) -> None:
        """Clear the counts if a new day has begun, and remove old files."""
        if (day := self._today()) <= self._day:
            return
        self._load_day(day)
        for each in _recorded_days(self._folder):
            if each < day - timedelta(KEPT_DAYS):
                with suppress(OSError):
                    (self._folder / f"{REQUESTS}{each.isoformat()}.jsonl").unlink()


def forget_rows(folder: Path) -> None:
    """Count the rows of another table from now on; the budgets of callers stay."""
    for day in sorted(_recorded_days(folder))[-1:]:
        append_jsonl(folder / f"{REQUESTS}{day.isoformat()}.jsonl", {TABLE: "changed"})


def _recorded_days(folder: Path) -> list[date]:
    """Return the days that have a file of requests."""
    days = []
    for path in folder.glob(f"{REQUESTS}*.jsonl"):
        with suppress(ValueError):
            days.append(date.fromisoformat(path.stem.removeprefix(REQUESTS)))
    return days
