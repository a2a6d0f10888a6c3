"""The interface of a connection between the coordinator and one party."""

from concurrent.futures import Future
from typing import Protocol

from xvfl.wire.messages import Hello, Message


class Transport(Protocol):
    """A connection to one party. One request is open at a time; the next one cancels it."""

    def hello(self) -> Hello | None:
        """Return the party's `Hello` while it is connected and idle, else None."""

    def request(self, message: Message) -> Future[Message]:
        """Send a request; the future holds the reply, also after a reconnection."""

    def traffic(self) -> tuple[int, int]:
        """Bytes sent and received so far."""
