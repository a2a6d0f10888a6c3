"""Ids of requests: an epoch, drawn at random by each process, then a number that rises.

TLS detects frames that are replayed by others. The ids detect requests that the coordinator itself
repeats, after a reconnection or by an error, without comparing the clocks of two machines.
"""

import secrets
from collections import deque
from itertools import count

from xvfl.errors import WireError

EPOCH = 2**32
"""Ids of an epoch. An id has 63 bits: it also is an `int` in messages."""
MAX_PAST = 1000
"""Past epochs that are remembered."""
_ids = count(secrets.randbits(30) * EPOCH + 1)


def next_request_id() -> int:
    """Return a new request id of this process."""
    return next(_ids)


def lone_request_id() -> int:
    """Return the id of a request in an epoch of its own.

    For a connection that other processes have used meanwhile.
    """
    return secrets.randbits(30) * EPOCH + 1


class RequestOrder:
    """Accepts each request id once: rising ids of an epoch, and no epoch that has ended."""

    def __init__(self) -> None:
        self.last = 0
        """The last accepted id."""
        self._past = deque[int](maxlen=MAX_PAST)

    def check(self, request_id: int) -> None:
        """Raise `WireError` if an id is not new."""
        epoch, current = request_id // EPOCH, self.last // EPOCH
        if epoch in self._past or (epoch == current and request_id <= self.last):
            raise WireError(
                f"expected a request id above {self.last}, got {request_id}: stale or replayed"
            )

    def accept(self, request_id: int) -> None:
        """Remember the id of a request that was carried out."""
        if self.last and request_id // EPOCH != self.last // EPOCH:
            self._past.append(self.last // EPOCH)
        self.last = request_id
