"""The event log of a process: one JSON object per line in `log.jsonl`."""

import json
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

from xvfl.system.files import append_jsonl, json_line, read_jsonl
from xvfl.system.printable import one_line, printable, shorten

LOG = "log.jsonl"
"""File of the log in a state folder."""
FINISHED = "finished"
"""Event of a completed run; also the reason that the parties receive with `End`."""
MATCHING_STARTED, MATCHING_PROGRESS = "matching_started", "matching_progress"
MATCHED = "matched"
"""Events of a matching session; `MATCHED` is also the reason in `End` if no training follows."""
PROGRESS_S = 10.0
"""Seconds between two events about the progress of a task."""
MAX_VALUE = 8000
"""Characters of a value in the log; a traceback fits."""
PLAIN = re.compile(r"[^\s\"=]+")
"""Values that need no quotes."""
LogFunction = Callable[[Mapping[str, Any]], None]
"""Log an event: a mapping with the key `event` and details."""


class TrailFile(Protocol):
    """Receives all events, and appends some to a trail."""

    problem: str
    """Why entries wait; empty if none do."""
    n_failed: int
    """Entries that could not be written at once."""

    def __call__(self, event: Mapping[str, Any]) -> None:
        """Append an event; no error is raised."""
        ...


class EventLog:
    """Appends events to a log file, and prints them on standard error unless quiet.

    With `as_json` it prints the lines of the file. Events also go to the trail, if there is one.
    """

    def __init__(
        self,
        folder: Path,
        process: str,
        show: bool = True,
        as_json: bool = False,
        trail: Callable[[Path, str], TrailFile] | None = None,
    ) -> None:
        self._trail = trail(folder, process) if trail is not None else None
        self.path, self._process, self._show = folder / LOG, process, show
        self._as_json, self._lock = as_json, threading.Lock()
        self._lost: dict[str, Any] = {}
        self._counts, self._n_lost = Counter[str](), 0

    def status(self) -> dict[str, Any]:
        """Return the entries of a status: events by name, and events that were not written."""
        n_lost, problems = self._n_lost, []
        if self._lost:
            problems = [f"{self.path.name} cannot be written ({self._lost['reason']})"]
        if self._trail is not None:
            n_lost += self._trail.n_failed
            problems += filter(None, [self._trail.problem])
        lost = {"events": dict(self._counts), "log_events_lost": n_lost}
        return {**lost, "healthy": False, "problem": "; ".join(problems)} if problems else lost

    def __call__(self, event: Mapping[str, Any]) -> None:
        """Append an event, with the time."""
        self.write(event)

    def write(self, event: Mapping[str, Any]) -> None:
        """Append an event, with the time.

        Events that cannot be written are lost and counted; the next one that can is preceded by
        their number.
        """
        now = datetime.now(UTC)
        time = now.isoformat(timespec="milliseconds")
        line = {"time": time, **_bounded(event)}
        with self._lock:
            try:
                if self._lost:
                    append_jsonl(self.path, {"time": time, "event": "log_lines_lost", **self._lost})
                    self._lost = {}
                append_jsonl(self.path, line)
            except OSError as error:
                count = self._lost.get("count", 0) + 1
                self._lost = {"count": count, "reason": error.strerror or str(error)}
                self._n_lost += 1
            self._counts[str(event.get("event"))] += 1
        if self._show:
            # Standard error may be a file on a full disk, or a closed pipe.
            with suppress(OSError, ValueError):
                text = f"{now:%H:%M:%S} {self._process}: {format_event(event)}"
                print(json_line(line) if self._as_json else text, file=sys.stderr)
        if self._trail is not None:
            before = self._trail.problem
            self._trail(line)
            if self._trail.problem and not before:
                self.write({"event": "trail_not_written", "reason": self._trail.problem})


def format_event(event: Mapping[str, Any]) -> str:
    """Format an event as one line for people: its name, then KEY=VALUE, quoted where needed."""
    details = (f"{key}={_value(each)}" for key, each in event.items() if key != "event")
    return " ".join((one_line(str(event.get("event"))), *details))


def _value(value: object) -> str:
    text = value if isinstance(value, str) else str(value)
    if isinstance(value, list | tuple | dict):
        text = json.dumps(value, ensure_ascii=False, default=str)
    elif PLAIN.fullmatch(text) is None:
        text = json.dumps(text, ensure_ascii=False)
    return shorten(printable(text), MAX_VALUE)


def _bounded(value: Any) -> Any:
    """Shorten the texts of an event."""
    if isinstance(value, str):
        return shorten(value, MAX_VALUE)
    if isinstance(value, Mapping):
        return {shorten(str(key)): _bounded(each) for key, each in value.items()}
    return [_bounded(each) for each in value] if isinstance(value, list | tuple) else value


class ProgressLog:
    """Logs the progress of a task, at most once every `PROGRESS_S` seconds."""

    def __init__(self, log: LogFunction, event: Mapping[str, Any]) -> None:
        self._log, self._event, self._last = log, event, monotonic()

    def __call__(self, done: int, total: int) -> None:
        """Log the share that is done in percent."""
        if (now := monotonic()) >= self._last + PROGRESS_S:
            self._last = now
            self._log({**self._event, "percent": 100 * done // total})


def read_log(folder: Path) -> list[dict[str, Any]]:
    """Read the events of a process from its state folder."""
    return read_jsonl(folder / LOG)
