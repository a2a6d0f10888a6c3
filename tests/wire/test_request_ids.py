"""Request ids: each is accepted once, and no clock takes part."""

import time
from itertools import count

import pytest

from xvfl.errors import WireError
from xvfl.wire import request_ids
from xvfl.wire.request_ids import EPOCH, MAX_PAST, RequestOrder, next_request_id


def accepts(order: RequestOrder, request_id: int) -> bool:
    try:
        order.check(request_id)
    except WireError as error:
        return "stale or replayed" not in str(error)
    order.accept(request_id)
    return True


def test_ids_rise_whatever_the_clock_says(monkeypatch: pytest.MonkeyPatch) -> None:
    order = RequestOrder()
    for seconds in (0, 7200, -7200, 86400 * 3650):
        now = time.time() + seconds
        monkeypatch.setattr(time, "time", lambda now=now: now)
        monkeypatch.setattr(time, "time_ns", lambda now=now: int(now * 1e9))
        assert all(accepts(order, next_request_id()) for _ in range(3))
    assert 0 < order.last < 2**63


def test_an_id_is_accepted_once() -> None:
    order = RequestOrder()
    accepted = [each for each in (5, 5, 4, 6, 9, 6) if accepts(order, each)]
    assert accepted == [5, 6, 9]


def test_a_restarted_coordinator_begins_anew_and_its_earlier_ids_are_stale() -> None:
    order = RequestOrder()
    for epoch in (7, 3, 5):
        assert accepts(order, epoch * EPOCH + 2)
        assert not accepts(order, epoch * EPOCH + 2)
    for epoch in (7, 3):
        assert not accepts(order, epoch * EPOCH + 100)
    assert accepts(order, 5 * EPOCH + 3)


def test_a_rejected_id_changes_nothing() -> None:
    order = RequestOrder()
    assert accepts(order, 7 * EPOCH + 2)
    order.check(8 * EPOCH + 1)
    assert accepts(order, 7 * EPOCH + 3)


def test_an_epoch_that_is_used_up_is_followed_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_ids, "_ids", count(3 * EPOCH - 2))
    order = RequestOrder()
    assert all(accepts(order, next_request_id()) for _ in range(5))
    assert not accepts(order, 3 * EPOCH - 1)


def test_past_epochs_take_bounded_memory() -> None:
    order = RequestOrder()
    assert all(accepts(order, epoch * EPOCH + 1) for epoch in range(2 * MAX_PAST))
    assert len(order._past) == MAX_PAST
