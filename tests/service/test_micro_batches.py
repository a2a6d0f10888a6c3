"""Concurrent requests share an exchange."""

from concurrent.futures import Future
from threading import Event
from typing import Any

import pytest

from xvfl_serve.errors import OverloadedError
from xvfl_serve.http.micro_batches import Answers, MicroBatcher


class Exchanges:
    """Answers rows; the first exchange lasts until `go` is set."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[int], str]] = []
        self.started, self.go = Event(), Event()

    def answer(self, rows: list[int], caller: str, deadline: float) -> Answers:
        self.calls.append((rows, caller))
        self.started.set()
        self.go.wait(60)
        if 13 in rows:
            raise ValueError("thirteen")
        return [{"row": row} for row in rows]


def rows_of(future: "Future[Answers]") -> list[Any]:
    return [each["row"] for each in future.result(60)]


def test_requests_that_wait_share_an_exchange_by_caller() -> None:
    exchanges = Exchanges()
    batcher = MicroBatcher(exchanges.answer, max_rows=5)
    first = batcher.submit([1, 2], "a", 60)
    exchanges.started.wait(60)
    second, third = batcher.submit([3], "a", 60), batcher.submit([4, 3], "a", 60)
    other, large = batcher.submit([3], "b", 60), batcher.submit([5, 6, 7], "a", 60)
    exchanges.go.set()
    waiting = (first, second, third, other, large)
    assert [rows_of(each) for each in waiting] == [[1, 2], [3], [4, 3], [3], [5, 6, 7]]
    assert exchanges.calls == [([1, 2], "a"), ([3, 4], "a"), ([3], "b"), ([5, 6, 7], "a")]
    assert (batcher.n_requests, batcher.n_exchanges) == (5, 4)
    batcher.close()


def test_a_request_with_a_short_deadline_does_not_shorten_others() -> None:
    exchanges = Exchanges()
    batcher = MicroBatcher(exchanges.answer, max_rows=5)
    batcher.submit([1], "a", 600)
    exchanges.started.wait(60)
    for row, seconds in ((2, 600), (3, 60), (4, 500), (5, 40)):
        batcher.submit([row], "a", seconds)
    last = batcher.submit([6], "a", 600)
    exchanges.go.set()
    assert rows_of(last) == [6]
    batcher.close()
    assert [rows for rows, _ in exchanges.calls] == [[1], [2, 4, 6], [3, 5]]


def test_an_error_reaches_the_requests_of_its_exchange_alone() -> None:
    exchanges = Exchanges()
    exchanges.go.set()
    batcher = MicroBatcher(exchanges.answer, max_rows=5)
    with pytest.raises(ValueError, match="thirteen"):
        batcher.submit([13], "a", 60).result(60)
    assert rows_of(batcher.submit([1], "a", 60)) == [1]
    batcher.close()


def test_a_request_that_waited_too_long_is_not_sent() -> None:
    exchanges = Exchanges()
    batcher = MicroBatcher(exchanges.answer, max_rows=5)
    batcher.submit([1], "a", 60)
    exchanges.started.wait(60)
    late = batcher.submit([2], "a", 0.0)
    exchanges.go.set()
    with pytest.raises(OverloadedError, match="waited too long"):
        late.result(60)
    assert len(exchanges.calls) == 1
    batcher.close()
