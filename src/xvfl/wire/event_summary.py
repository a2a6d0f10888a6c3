"""Summarize events that a peer can repeat at will, so that it cannot fill the log."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

LogEvent = Callable[[dict[str, Any]], None]
DELAY_S, BURST_S = 0.5, 10.0
"""Events of a kind are logged when none has followed for the delay, at the latest after a burst."""
FLUSH_S = 0.25
"""Seconds between two calls of `flush`."""
INTERVAL_S = 60.0
"""Seconds between two lines of one kind."""
MAX_KINDS = 32
"""Kinds that are told apart; further ones are logged as one kind."""
MAX_ADDRESSES = 5
"""Addresses that a line names."""


class EventSummary:
    """Logs one line for all events of a kind within an interval, with their number.

    Events are of one kind if all their fields are equal. Callable from any thread.
    """

    def __init__(
        self, log_event: LogEvent, delay: float = DELAY_S, interval: float = INTERVAL_S
    ) -> None:
        """Log a kind `delay` seconds after its events, and at most every `interval` seconds."""
        self._log_event, self._delay, self._interval = log_event, delay, interval
        self._kinds: dict[tuple[Any, ...], _Kind] = {}
        self._lock = threading.Lock()

    def add(self, event: dict[str, Any], address: str | None = None) -> None:
        """Count an event; `address` is the peer's and does not distinguish kinds."""
        with self._lock:
            key = tuple(sorted((name, str(value)) for name, value in event.items()))
            if key not in self._kinds and len(self._kinds) >= MAX_KINDS:
                event = {"event": event["event"], "reason": "various"}
                key = tuple(event.items())
            kind = self._kinds.setdefault(key, _Kind(event))
            now = time.monotonic()
            kind.first = kind.first if kind.count else now
            latest = kind.first + max(self._delay, BURST_S)
            kind.due = max(min(now + self._delay, latest), kind.quiet_until)
            kind.count += 1
            if address is not None:
                kind.addresses[address] += 1

    def flush(self, everything: bool = False) -> None:
        """Log the lines that are due; call it every `FLUSH_S` seconds."""
        now = time.monotonic()
        with self._lock:
            due = [
                kind
                for kind in self._kinds.values()
                if kind.count and (everything or now > kind.due)
            ]
            lines = [kind.line() for kind in due]
            for kind in due:
                kind.count, kind.quiet_until = 0, now + self._interval
                kind.addresses.clear()
            idle = [
                key
                for key, kind in self._kinds.items()
                if not kind.count and now > kind.quiet_until
            ]
            for key in idle:
                del self._kinds[key]
        for line in lines:
            self._log_event(line)


class _Kind:
    """The events of one kind that are not logged yet."""

    def __init__(self, event: dict[str, Any]) -> None:
        self.event, self.count = event, 0
        self.first = self.due = self.quiet_until = 0.0
        self.addresses: Counter[str] = Counter()

    def line(self) -> dict[str, Any]:
        line = dict(self.event)
        if self.count > 1:
            line["count"] = self.count
        if self.addresses:
            most = self.addresses.most_common(MAX_ADDRESSES)
            line["addresses"] = [address for address, _ in most]
        return line
