"""A peer that repeats an event cannot fill the log."""

from typing import Any

import pytest

from xvfl.wire import limited_log
from xvfl.wire.limited_log import INTERVAL_S, MAX_LINES, LimitedLog


def test_events_of_a_party_are_limited_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[dict[str, Any]] = []
    now = 0.0
    monkeypatch.setattr(limited_log.time, "monotonic", lambda: now)
    log = LimitedLog(lines.append)
    for i in range(1000):
        log({"event": "rejected", "party": "p0", "reason": str(i)})
    assert len(lines) == MAX_LINES
    log({"event": "rejected", "party": "p1"})
    assert lines[-1] == {"event": "rejected", "party": "p1"}
    now = INTERVAL_S
    log({"event": "rejected", "party": "p0"})
    assert lines[-1] == {"event": "rejected", "party": "p0", "not_logged": 1000 - MAX_LINES}
    log.close()
    assert len(lines) == MAX_LINES + 2
