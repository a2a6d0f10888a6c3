"""The coordinator's transport to one party over gRPC."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import grpc

from xvfl.errors import PartyError, WireError
from xvfl.wire import codec
from xvfl.wire.limits import FrameAssembler, ReplyLimit, split_frame
from xvfl.wire.messages import Hello, Message

BROKEN = (grpc.RpcError, asyncio.InvalidStateError, grpc.aio.BaseError, grpc.aio.UsageError)
"""Exceptions of a write to a broken stream."""
END_TIMEOUT_S = 2.0
"""Seconds to send a status to a party before its connection is closed."""
REPLACED = "the same party opened a new connection"


@dataclass(frozen=True)
class Connection:
    """A stream whose `Hello` was accepted."""

    stream: Any
    hello: Hello
    certificate: bytes
    """The party's certificate (PEM)."""
    version: int
    """Version of the protocol of messages to the party."""
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    expected: dict[int, int] = field(default_factory=dict)
    """Largest reply to each request that was sent and not answered yet, in bytes."""
    assembler: FrameAssembler = field(default_factory=FrameAssembler)


@dataclass(frozen=True)
class _OpenRequest:
    message: Message
    reply: Future[Message]


class GrpcTransport:
    """The `Transport` to one party.

    All methods but `request` run in the server's thread.
    """

    def __init__(
        self,
        name: str,
        loop: asyncio.AbstractEventLoop,
        limit: ReplyLimit,
        drop_connection: Callable[[str], None],
    ) -> None:
        """Create a transport without a connection.

        Parameters
        ----------
        name
            The party.
        loop
            Event loop of the server.
        limit
            Bounds the reply to a request.
        drop_connection
            Closes the TCP connection of a peer that does not read.
        """
        self.name = name
        self.connection: Connection | None = None
        self._loop, self._limit, self._drop_connection = loop, limit, drop_connection
        self._hello: Hello | None = None
        self._open: _OpenRequest | None = None
        self._sent = self._received = 0

    def hello(self) -> Hello | None:
        """Return the party's `Hello` while it is connected and idle, else None."""
        idle = self.connection is not None and self._open is None
        return self._hello if idle else None

    def request(self, message: Message) -> Future[Message]:
        """Send a request; the future holds the reply, also after a reconnection."""
        request = _OpenRequest(message, Future())
        self._loop.call_soon_threadsafe(self._open_request, request)
        return request.reply

    def traffic(self) -> tuple[int, int]:
        """Bytes sent and received so far."""
        return self._sent, self._received

    def end(self, code: grpc.StatusCode, text: str) -> None:
        """Close the connection with a status."""
        if self.connection is not None:
            self._start(self.abort(self.connection, code, text))

    async def abort(self, connection: Connection, code: grpc.StatusCode, text: str) -> None:
        """Abort a stream after a pending write: gRPC cannot do both at once."""
        try:
            async with asyncio.timeout(END_TIMEOUT_S):
                async with connection.writing:
                    await connection.stream.abort(code, text)
        except TimeoutError:
            self._drop_connection(connection.stream.peer())

    def fail_open_request(self, reason: str) -> None:
        """Fail the open request at once: the party cannot reply to it any more."""
        if self._open is not None:
            reply, self._open = self._open.reply, None
            if not reply.done():
                reply.set_exception(PartyError(f"party {self.name!r} {reason}", (self.name,)))

    def connect(self, connection: Connection) -> None:
        """Use a new stream; a restarted party cannot reply to the open request."""
        if self._hello is not None and self._hello.instance_id != connection.hello.instance_id:
            self.fail_open_request("restarted")
        self.end(grpc.StatusCode.UNAVAILABLE, REPLACED)
        self.connection, self._hello = connection, connection.hello
        self._send_open()

    def disconnect(self, connection: Connection) -> bool:
        """Drop a connection; return False if another one has replaced it."""
        if self.connection is not connection:
            return False
        self.connection = None
        return True

    def taken_by(self, hello: Hello) -> bool:
        """Return whether another process of the same party is connected."""
        known = self.connection
        return known is not None and known.hello.instance_id != hello.instance_id

    def receive(self, connection: Connection, chunk: bytes) -> None:
        """Take a part of a reply; a reply to a cancelled request is ignored."""
        if connection is not self.connection:
            raise WireError(REPLACED)
        self._received += len(chunk)
        frame = connection.assembler.add(chunk, lambda request_id: _allowed(connection, request_id))
        if frame is None:
            return
        message = codec.decode(frame, len(frame))
        connection.expected.pop(message.request_id, None)
        if self._open is not None and message.request_id == self._open.message.request_id:
            reply, self._open = self._open.reply, None
            if not reply.done():
                reply.set_result(message)

    def _open_request(self, request: _OpenRequest) -> None:
        self._open = request
        self._send_open()

    def _send_open(self) -> None:
        connection = self.connection
        if self._open is not None and connection is not None:
            message = self._open.message
            connection.expected[message.request_id] = self._limit(message, connection.hello)
            frame = codec.encode(message, connection.version)
            self._start(self._write(connection, frame))

    async def _write(self, connection: Connection, frame: bytes) -> None:
        async with connection.writing:
            try:
                for chunk in split_frame(frame):
                    await connection.stream.write(chunk)
                self._sent += len(frame)
            except BROKEN:
                return

    def _start(self, task: Any) -> None:
        self._loop.create_task(task).add_done_callback(lambda done: done.exception())


def _allowed(connection: Connection, request_id: int) -> int:
    if request_id not in connection.expected:
        raise WireError(f"expected a reply to an open request, got request id {request_id}")
    return connection.expected[request_id]
