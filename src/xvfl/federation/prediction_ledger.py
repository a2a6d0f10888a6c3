"""A party's budgets for prediction, apart from those of training.

The counts of the rows belong to the table that the operator opened and are kept in a memory-mapped
file. The requests of a day are lines of a file, one for each request. Both survive the end of the
process.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from xvfl.errors import ConfigError, RunError
from xvfl.federation.request_ledger import open_counts
from xvfl.system.files import append_jsonl, read_jsonl

MAX_CALLERS, OTHERS = 20, "(others)"
"""Callers that are shown by name, and the name of all others together."""
COUNTS = "row-requests.npy"


@dataclass(frozen=True)
class PredictionLimits:
    """Budgets of a party for prediction; a request for n rows counts n times."""

    max_per_row: int = 100
    """Requests for one row, as long as the same table is open."""
    max_per_caller: int = 10_000
    """Rows that one caller may request in a day (UTC)."""
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
    """

    def __init__(
        self,
        limits: PredictionLimits,
        n_rows: int,
        folder: Path,
        today: Callable[[], date] = utc_today,
    ) -> None:
        self.limits, self._folder, self._today = limits, folder, today
        self._counts = open_counts(folder / COUNTS, np.zeros((1, n_rows), dtype=np.uint32))[0]
        self._load_day(today())

    def take(self, rows: NDArray[np.int64], caller: str) -> tuple[NDArray[np.bool_], str]:
        """Count a request for rows of the table.

        Returns which rows are within the budgets, and which budget refused the others.
        """
        if (day := self._today()) != self._day:
            self._load_day(day)
        limits = self.limits
        allowed = self._counts[rows] < limits.max_per_row
        refusal = "" if allowed.all() else f"max_per_row ({limits.max_per_row}) is used up"
        left = {
            "max_per_caller": limits.max_per_caller - self._callers[caller],
            "max_per_day": limits.max_per_day - self._callers.total(),
        }
        name = min(left, key=lambda each: left[each])
        if allowed.sum() > left[name]:
            allowed &= np.cumsum(allowed) <= left[name]
            refusal = f"{name} ({getattr(limits, name)}) is used up until midnight UTC"
        if count := int(allowed.sum()):
            self._record(caller, count)
            self._counts[rows[allowed]] += 1
        return allowed, refusal

    def usage(self) -> dict[str, object]:
        """Return what was used of the budgets, for monitoring."""
        return {
            "prediction_requests_today": self._callers.total(),
            "prediction_requests_allowed": self.limits.max_per_day,
            "prediction_requests_of_a_row": int(self._counts.max(initial=0)),
            "prediction_requests_of_a_row_allowed": self.limits.max_per_row,
            "prediction_requests_by_caller": self._by_caller(),
        }

    def _by_caller(self) -> dict[str, int]:
        """Return the rows of the first callers of the day, and of all others together.

        The coordinator chooses the names; each one is a time series where metrics are stored.
        """
        first = dict(list(self._callers.items())[:MAX_CALLERS])
        others = self._callers.total() - sum(first.values())
        return {**first, OTHERS: others} if others else first

    def _record(self, caller: str, count: int) -> None:
        try:
            append_jsonl(self._path, {"caller": caller, "rows": count})
        except OSError as error:
            raise RunError(
                f"{self._path}: requests cannot be counted ({error.strerror}), so none is answered"
            ) from error
        self._callers[caller] += count

    def _load_day(self, day: date) -> None:
        self._day, self._path = day, self._folder / f"requests-{day.isoformat()}.jsonl"
        self._callers = Counter[str]()
        for each in read_jsonl(self._path):
            self._callers[str(each.get("caller"))] += int(each.get("rows", 0))
