"""Requests for consent: asked once, decided by a number, used once."""

from pathlib import Path
from typing import Any

import pytest

from xvfl.errors import InputError, RunError
from xvfl.trail.approvals import APPROVALS, MAX_KEPT, Approvals


def test_a_request_is_asked_once_and_used_once(tmp_path: Path) -> None:
    events = list[Any]()
    approvals = Approvals(tmp_path, events.append)
    assert approvals.ask("match", "the table has changed")
    assert not approvals.ask("match", "again") and not approvals.granted("match")
    approvals.decide(1, "ann", approve=True)
    # Until it is used, the coordinator cannot make another one.
    assert approvals.granted("match") and not approvals.ask("match", "again")
    approvals.use("match")
    assert not approvals.granted("match") and approvals.pending() == []
    assert approvals.ask("match", "another time") and approvals.pending()[0].number == 2
    assert [each["event"] for each in events] == [
        "approval_requested",
        "request_approved",
        "approval_requested",
    ]
    assert events[1]["by"] == "ann" and events[1]["number"] == 1


def test_a_rejected_kind_is_not_asked_again_on_the_same_day(tmp_path: Path) -> None:
    approvals = Approvals(tmp_path)
    approvals.ask("new-rows", "rows of October")
    approvals.decide(1, "ann", approve=False)
    assert not approvals.ask("new-rows", "please") and not approvals.granted("new-rows")
    assert approvals.ask("new-version", "another kind")
    text = (tmp_path / APPROVALS).read_text()
    (tmp_path / APPROVALS).write_text(text.replace(approvals.all()[0].decided[:10], "2026-01-01"))
    assert approvals.ask("new-rows", "on another day")


def test_only_a_request_that_waits_can_be_decided(tmp_path: Path) -> None:
    approvals = Approvals(tmp_path)
    with pytest.raises(InputError, match="these do: none"):
        approvals.decide(1, "ann", approve=True)
    approvals.ask("match", "reason")
    with pytest.raises(InputError, match="these do: 1"):
        approvals.decide(2, "ann", approve=True)
    approvals.decide(1, "ann", approve=True)
    with pytest.raises(InputError):
        approvals.decide(1, "bob", approve=False)
    (tmp_path / APPROVALS).write_text("{")
    with pytest.raises(RunError, match="cannot be read"):
        approvals.all()


def test_the_file_stays_small(tmp_path: Path) -> None:
    approvals = Approvals(tmp_path)
    for number in range(1, MAX_KEPT + 20):
        approvals.ask("match", "reason")
        approvals.decide(number, "ann", approve=True)
        approvals.use("match")
    assert len(approvals.all()) <= MAX_KEPT
    assert approvals.all()[-1].number == MAX_KEPT + 19
