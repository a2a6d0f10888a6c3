"""Continue while files cannot be written: a full disk or a missing descriptor ends no run."""

import time
from collections.abc import Callable
from typing import Any

from xvfl.errors import RunError

RETRY_S = 5.0
"""Seconds between two attempts to write a file that the run cannot do without."""


class WriteGuard:
    """Writes files; logs one event when a file cannot be written, and one when it can again."""

    def __init__(self, log_event: Callable[[dict[str, Any]], None]) -> None:
        self._log_event = log_event
        self._failures: dict[str, int] = {}

    def attempt(self, file: str, write: Callable[[], object]) -> bool:
        """Write a file; return False if this fails. `file` is its name in the log."""
        try:
            write()
        except (RunError, OSError) as error:
            self._failures[file] = self._failures.get(file, 0) + 1
            if self._failures[file] == 1:
                self._log_event({"event": "write_failed", "file": file, "reason": str(error)})
            return False
        if failures := self._failures.pop(file, 0):
            self._log_event({"event": "write_recovered", "file": file, "failures": failures})
        return True

    def insist(self, file: str, write: Callable[[], object], timeout: float) -> None:
        """Write a file; while this fails, try again for `timeout` seconds, then raise the error."""
        deadline = time.monotonic() + timeout
        while not self.attempt(file, write):
            if time.monotonic() > deadline:
                write()
                return
            time.sleep(min(RETRY_S, timeout))
