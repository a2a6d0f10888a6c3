"""Transports without a network: to a party in the same process, and to one that is away."""

from collections.abc import Callable
from concurrent.futures import Future

from xvfl.wire import codec, protocol
from xvfl.wire.messages import Hello, Message


class InProcessTransport:
    """Call a party's endpoint directly."""

    def __init__(self, hello: Hello, handle: Callable[[bytes], bytes]) -> None:
        """Take the party's `Hello` and the function that handles its frames."""
        self._hello, self._handle = hello, handle
        self._sent = self._received = 0

    def hello(self) -> Hello | None:
        """Return the party's `Hello`."""
        return self._hello

    def request(self, message: Message) -> Future[Message]:
        """Send a request; the future is done on return."""
        answer: Future[Message] = Future()
        frame = codec.encode(message, protocol.NEWEST)
        self._sent += len(frame)
        reply = self._handle(frame)
        self._received += len(reply)
        answer.set_result(codec.decode(reply))
        return answer

    def traffic(self) -> tuple[int, int]:
        """Bytes sent and received so far."""
        return self._sent, self._received


class OfflineTransport:
    """A party that is not connected."""

    def hello(self) -> Hello | None:
        """Return None: the party is not connected."""
        return None

    def request(self, message: Message) -> Future[Message]:
        """Return a reply that never arrives."""
        return Future()

    def traffic(self) -> tuple[int, int]:
        """Return that nothing was sent and received."""
        return 0, 0
