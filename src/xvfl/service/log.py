"""The event log of a process: one JSON object per line in `log.jsonl`."""

import sys
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from xvfl.errors import RunError
from xvfl.system.files import append_jsonl, read_jsonl

LOG = "log.jsonl"
FINISHED = "finished"
"""Event of a completed run; also the reason that the parties receive with `End`."""
MATCHING_STARTED, MATCHED = "matching_started", "matched"
"""Events of a matching session; `MATCHED` is also the reason in `End` if no training follows."""
LogFunction = Callable[[Mapping[str, Any]], None]
"""Log an event: a mapping with the key `event` and details."""


class EventLog:
    """Appends events to a log file, and prints them on standard error unless quiet."""

    def __init__(self, folder: Path, process: str, show: bool = True) -> None:
        self.path, self._process, self._show = folder / LOG, process, show
        self._lock = threading.Lock()

    def write(self, event: Mapping[str, Any]) -> None:
        """Append an event, with the time."""
        now = datetime.now(UTC)
        with self._lock:
            try:
                append_jsonl(self.path, {"time": now.isoformat(timespec="milliseconds"), **event})
            except OSError as error:
                raise RunError(f"{self.path}: cannot be written ({error.strerror})") from error
        if self._show:
            rest = " ".join(f"{key}={value}" for key, value in event.items() if key != "event")
            print(f"{now:%H:%M:%S} {self._process}: {event.get('event')} {rest}", file=sys.stderr)


def read_log(folder: Path) -> list[dict[str, Any]]:
    """Read the events of a process from its state folder."""
    return read_jsonl(folder / LOG)
