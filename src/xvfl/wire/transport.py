"""How a coordinator's messages reach one party, whatever lies between."""

from concurrent.futures import Future
from typing import Protocol

from xvfl.wire.messages import Hello, Message


class Transport(Protocol):
    """One party's line. One question is open at a time; asking the next gives up the last."""

    def hello(self) -> Hello | None:
        """Give what the party said of itself, while it is there and free to answer."""

    def exchange(self, message: Message) -> Future[Message]:
        """Ask; the answer comes when it comes, also over a line that broke and came back."""

    def traffic(self) -> tuple[int, int]:
        """Bytes sent and received so far."""

    def close(self) -> None:
        """Hang up."""
