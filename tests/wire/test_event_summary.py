"""Repeated events are one line with their number."""

import time
from typing import Any

from xvfl.wire.event_summary import MAX_KINDS, EventSummary


def test_equal_events_are_one_line_with_their_number_and_addresses() -> None:
    lines: list[dict[str, Any]] = []
    summary = EventSummary(lines.append, delay=0.05, interval=3600)
    for i in range(1000):
        summary.add({"event": "rejected", "reason": "a"}, f"10.0.0.{i % 7}")
    summary.add({"event": "rejected", "reason": "b"})
    summary.flush()
    assert not lines
    time.sleep(0.1)
    summary.flush()
    first = {"event": "rejected", "reason": "a", "count": 1000}
    assert lines[0].items() >= first.items() and len(lines[0]["addresses"]) == 5
    assert lines[1:] == [{"event": "rejected", "reason": "b"}]


def test_after_a_line_a_kind_is_quiet_for_the_interval() -> None:
    lines: list[dict[str, Any]] = []
    summary = EventSummary(lines.append, delay=0, interval=0.3)
    for _ in range(3):
        summary.add({"event": "x"})
        time.sleep(0.01)
        summary.flush()
    assert lines == [{"event": "x"}]
    time.sleep(0.4)
    summary.flush()
    assert lines == [{"event": "x"}, {"event": "x", "count": 2}]


def test_a_peer_that_varies_its_events_cannot_fill_the_log() -> None:
    lines: list[dict[str, Any]] = []
    summary = EventSummary(lines.append, delay=0)
    for i in range(1000):
        summary.add({"event": "rejected", "reason": str(i)})
    summary.flush(everything=True)
    assert len(lines) == MAX_KINDS + 1
    assert sum(each.get("count", 1) for each in lines) == 1000
