"""Requests that arrive while an exchange is in progress share the next one.

The first request starts at once. Nobody waits for a request that may come.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from xvfl_serve.errors import OverloadedError

Answers = list[dict[str, Any]]
AnswerRows = Callable[[list[int], str, float], Answers]
"""Answer rows for a caller before a deadline (of `time.monotonic`)."""
MIN_SHARE = 0.1
"""A request that has less than this share of its time left is not sent to the parties."""
MAX_RATIO = 2.0
"""Requests share an exchange if the seconds of one are at most this multiple of the other's."""


@dataclass(frozen=True)
class _Request:
    rows: Sequence[int]
    caller: str
    seconds: float
    deadline: float
    answers: "Future[Answers]" = field(default_factory=Future)

    @property
    def latest_start(self) -> float:
        return self.deadline - MIN_SHARE * self.seconds

    def is_like(self, other: "_Request") -> bool:
        """Return whether both come from one caller and have about the same time."""
        shorter, longer = sorted((self.seconds, other.seconds))
        return self.caller == other.caller and longer <= MAX_RATIO * shorter


class MicroBatcher:
    """Merges requests of one caller; one thread carries out one exchange after the other.

    An exchange ends before the earliest deadline of its requests, so those with much more time are
    not merged with it.

    Parameters
    ----------
    answer
        Answers distinct rows.
    max_rows
        Rows of one exchange; a larger request has an exchange of its own.
    """

    def __init__(self, answer: AnswerRows, max_rows: int) -> None:
        self._answer, self._max_rows = answer, max_rows
        self._waiting: list[_Request] = []
        self._changed = threading.Condition()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="micro-batches", daemon=True)
        self._thread.start()
        self.n_requests = self.n_exchanges = 0

    def submit(self, rows: Sequence[int], caller: str, seconds: float) -> "Future[Answers]":
        """Queue a request that must be answered within some seconds."""
        request = _Request(rows, caller, seconds, time.monotonic() + seconds)
        with self._changed:
            self._waiting.append(request)
            self._changed.notify()
        return request.answers

    def close(self) -> None:
        """Finish the exchange in progress and stop."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._thread.join(5)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._stopped:
                    self._changed.wait()
                if self._stopped:
                    return
                batch = self._next_batch()
            self._answer_batch(batch)

    def _next_batch(self) -> list[_Request]:
        """Take the oldest request, and those like it that fit into the exchange."""
        first, rest = self._waiting[0], self._waiting[1:]
        batch, left, count = [first], list[_Request](), len(first.rows)
        for each in rest:
            if each.is_like(first) and count + len(each.rows) <= self._max_rows:
                batch.append(each)
                count += len(each.rows)
            else:
                left.append(each)
        self._waiting = left
        return batch

    def _answer_batch(self, batch: list[_Request]) -> None:
        # From here on they cannot be cancelled, so that each accepts a result.
        batch = [each for each in batch if each.answers.set_running_or_notify_cancel()]
        now = time.monotonic()
        for each in batch:
            if now > each.latest_start:
                each.answers.set_exception(
                    OverloadedError("the request waited too long for other requests; try again")
                )
        batch = [each for each in batch if now <= each.latest_start]
        if not batch:
            return
        rows = list(dict.fromkeys(row for each in batch for row in each.rows))
        self.n_requests += len(batch)
        self.n_exchanges += 1
        try:
            answers = self._answer(rows, batch[0].caller, min(each.deadline for each in batch))
            by_row = dict(zip(rows, answers, strict=True))
        except Exception as error:
            for each in batch:
                each.answers.set_exception(error)
            return
        for each in batch:
            each.answers.set_result([by_row[row] for row in each.rows])
