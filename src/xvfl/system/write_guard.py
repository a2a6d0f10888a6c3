"""Continue while files cannot be written: a full disk or a missing descriptor ends no run."""

import time
from collections.abc import Callable
from typing import Any

from xvfl.errors import RunError

RETRY_S = 5.0
"""Seconds between two attempts to write a file that the run cannot do without."""


class WriteGuard:
    """Writes files; logs one event when writing fails first, and one when it works again."""

    def __init__(self, log_event: Callable[[dict[str, Any]], None]) -> None:
        self._log_event, self._failures = log_event, 0

    def attempt(self, write: Callable[[], object]) -> bool:
        """Write; return False if this fails."""
        try:
            write()
        except (RunError, OSError) as error:
            self._failures += 1
            if self._failures == 1:
                self._log_event({"event": "write_failed", "reason": str(error)})
            return False
        if self._failures:
            failures, self._failures = self._failures, 0
            self._log_event({"event": "write_recovered", "failed_writes": failures})
        return True

    def insist(self, write: Callable[[], object], timeout: float) -> None:
        """Write; while this fails, try again for `timeout` seconds, then raise the error."""
        deadline = time.monotonic() + timeout
        while not self.attempt(write):
            if time.monotonic() > deadline:
                write()
                return
            time.sleep(min(RETRY_S, timeout))
