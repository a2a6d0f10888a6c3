"""Files of an HTTP port that are read again when they change: certificates, callers."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from xvfl_serve.errors import ServeError

CHECK_S = 1.0
"""Seconds between two looks at the files."""
LogEvent = Callable[[Mapping[str, Any]], None]
"""Log an event: a mapping with the key `event` and details."""
T = TypeVar("T")


class WatchedFiles(Generic[T]):
    """What was read from files. If changed files cannot be used, what was read before stays.

    Parameters
    ----------
    files
        The files.
    load
        Reads them; raises `ServeError` if they cannot be used, also from this constructor.
    what
        What they hold; the events are `WHAT_loaded` and `WHAT_not_loaded`.
    log
        Receives the events.
    """

    def __init__(
        self, files: Sequence[Path | str], load: Callable[[], T], what: str, log: LogEvent
    ) -> None:
        self._files, self._load, self._what, self._log = files, load, what, log
        self._version = self._stat()
        self._value, self._failed, self._checked = load(), "", time.monotonic()

    def __call__(self) -> T:
        """Return what the files hold."""
        if (now := time.monotonic()) >= self._checked + CHECK_S:
            self._checked, version = now, self._stat()
            if version != self._version:
                self._renew(version)
        return self._value

    def _renew(self, version: tuple[Any, ...]) -> None:
        try:
            self._value = self._load()
        except ServeError as error:
            # The next call tries again: another file may not be written yet.
            if str(error) != self._failed:
                self._failed = str(error)
                self._log({"event": f"{self._what}_not_loaded", "reason": self._failed})
            return
        self._version, self._failed = version, ""
        self._log({"event": f"{self._what}_loaded", "file": str(self._files[0])})

    def _stat(self) -> tuple[Any, ...]:
        found: list[Any] = []
        for path in self._files:
            try:
                stat = Path(path).stat()
                found.append((stat.st_ino, stat.st_mtime_ns, stat.st_size, stat.st_mode))
            except OSError as error:
                found.append(error.errno)
        return tuple(found)
