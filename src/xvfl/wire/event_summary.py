"""Summarize events that a peer can repeat at will, so that it cannot fill the log."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

LogEvent = Callable[[dict[str, Any]], None]
DELAY_S = 0.5
"""Seconds after the first event of a kind until it is logged, with all that follow in this time."""
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
        """Log each kind first after `delay`, then every `interval` seconds at most."""
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
            now = time.monotonic()
            kind = self._kinds.setdefault(key, _Kind(event, due=now + self._delay))
            if not kind.count:
                kind.due = max(kind.due, now + self._delay)
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
                kind.count, kind.due = 0, now + self._interval
                kind.addresses.clear()
            idle = [
                key
                for key, kind in self._kinds.items()
                if not kind.count and now > kind.due + self._interval
            ]
            for key in idle:
                del self._kinds[key]
        for line in lines:
            self._log_event(line)


class _Kind:
    """The events of one kind that are not logged yet."""

    def __init__(self, event: dict[str, Any], due: float) -> None:
        self.event, self.due, self.count = event, due, 0
        self.addresses: Counter[str] = Counter()

    def line(self) -> dict[str, Any]:
        line = dict(self.event)
        if self.count > 1:
            line["count"] = self.count
        if self.addresses:
            most = self.addresses.most_common(MAX_ADDRESSES)
            line["addresses"] = [address for address, _ in most]
        return line
