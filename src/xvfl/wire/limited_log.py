"""Limit log lines about events that a peer can repeat at will, so that it cannot fill the log."""

import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Any

LogEvent = Callable[[Mapping[str, Any]], None]
MAX_LINES, INTERVAL_S = 20, 60.0
"""Lines of one event and party that are logged within so many seconds; more are counted."""


class LimitedLog:
    """Logs a few events of each kind and party; the next line has the number of the others.

    Callable from any thread.
    """

    def __init__(self, log_event: LogEvent) -> None:
        self._log_event, self._lock = log_event, threading.Lock()
        self._recent: dict[Any, deque[float]] = defaultdict(lambda: deque(maxlen=MAX_LINES))
        self._not_logged: Counter[Any] = Counter()

    def __call__(self, event: Mapping[str, Any]) -> None:
        """Log or count an event; events of unknown peers have no party, or party `?`."""
        source, now = (event["event"], event.get("party")), time.monotonic()
        with self._lock:
            recent = self._recent[source]
            if len(recent) == MAX_LINES and now < recent[0] + INTERVAL_S:
                self._not_logged[source] += 1
                return
            recent.append(now)
            count = self._not_logged.pop(source, 0)
        self._log_event({**event, "not_logged": count} if count else event)

    def close(self) -> None:
        """Log how many events were counted since the last line."""
        if count := self._not_logged.total():
            self._log_event({"event": "events_not_logged", "count": count})
