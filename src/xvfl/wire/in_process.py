"""A party in the same process, behind the same bytes as any other."""

from collections.abc import Callable
from concurrent.futures import Future

from xvfl.wire import codec
from xvfl.wire.messages import Hello, Message


class InProcessTransport:
    """Calls a party's endpoint directly."""

    def __init__(self, hello: Hello, handle: Callable[[bytes], bytes]) -> None:
        """Reach a party through what answers its frames."""
        self._hello, self._handle = hello, handle
        self._sent = self._received = 0

    def hello(self) -> Hello | None:
        """Give what the party said of itself."""
        return self._hello

    def exchange(self, message: Message) -> Future[Message]:
        """Ask, and have the answer at once."""
        answer: Future[Message] = Future()
        frame = codec.encode(message)
        self._sent += len(frame)
        reply = self._handle(frame)
        self._received += len(reply)
        answer.set_result(codec.decode(reply))
        return answer

    def traffic(self) -> tuple[int, int]:
        """Bytes sent and received so far."""
        return self._sent, self._received

    def close(self) -> None:
        """Hang up."""
