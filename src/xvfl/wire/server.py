"""The coordinator's gRPC server. Parties connect to it; each has one `GrpcTransport`.

The client certificate identifies the party. When a connection breaks and the same process connects
again, the open request is sent again, and the party replies from its cache.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import grpc

from xvfl.errors import PartyError, RunError, WireError, XVFLError
from xvfl.wire import codec
from xvfl.wire.messages import Hello, Message
from xvfl.wire.tls import METHOD, SERVICE, Tls, channel_options

LogEvent = Callable[[dict[str, Any]], None]
BROKEN = (grpc.RpcError, asyncio.InvalidStateError, grpc.aio.BaseError, grpc.aio.UsageError)
"""Exceptions of a write to a broken stream."""


class GrpcTransport:
    """The `Transport` to one party.

    All methods but `request` and `close` run in the server's thread.
    """

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self.name = name
        self._loop = loop
        self._stream: Any = None
        self._hello: Hello | None = None
        self._open: tuple[bytes, int, Future[Message]] | None = None
        self._writing = asyncio.Lock()
        self._sent = self._received = 0

    def hello(self) -> Hello | None:
        """Return the party's `Hello` while it is connected and idle, else None."""
        idle = self._stream is not None and self._open is None
        return self._hello if idle else None

    def request(self, message: Message) -> Future[Message]:
        """Send a request; the future holds the reply, also after a reconnection."""
        reply: Future[Message] = Future()
        frame = codec.encode(message)
        self._loop.call_soon_threadsafe(self._open_request, frame, message.request_id, reply)
        return reply

    def traffic(self) -> tuple[int, int]:
        """Bytes sent and received so far."""
        return self._sent, self._received

    def close(self) -> None:
        """Close the connection."""
        self._loop.call_soon_threadsafe(self._drop)

    def _drop(self) -> None:
        if self._stream is not None:
            ending = self.end(self._stream, grpc.StatusCode.UNAVAILABLE, CLOSED)
            self._loop.create_task(ending).add_done_callback(lambda done: done.exception())

    async def end(self, stream: Any, code: grpc.StatusCode, text: str) -> None:
        """Abort a stream after a pending write: gRPC cannot do both at once."""
        async with self._writing if stream is self._stream else asyncio.Lock():
            await stream.abort(code, text)

    def _open_request(self, frame: bytes, request_id: int, reply: Future[Message]) -> None:
        self._open = (frame, request_id, reply)
        self._send_open()

    def _send_open(self) -> None:
        if self._open is not None and self._stream is not None:
            writing = self._write(self._stream, self._writing, self._open[0])
            self._loop.create_task(writing).add_done_callback(lambda done: done.exception())

    async def _write(self, stream: Any, lock: asyncio.Lock, frame: bytes) -> None:
        async with lock:
            try:
                await stream.write(frame)
                self._sent += len(frame)
            except BROKEN:
                return

    def connect(self, stream: Any, hello: Hello) -> None:
        """Use a new stream; a restarted party cannot reply to the open request."""
        if (
            self._hello is not None
            and self._hello.instance_id != hello.instance_id
            and self._open is not None
        ):
            _, _, reply = self._open
            self._open = None
            if not reply.done():
                reply.set_exception(PartyError(f"party {self.name!r} restarted", (self.name,)))
        self._stream, self._hello, self._writing = stream, hello, asyncio.Lock()
        self._send_open()

    def disconnect(self, stream: Any) -> bool:
        """Drop a stream; return False if another one has replaced it."""
        if self._stream is not stream:
            return False
        self._stream = None
        return True

    def taken_by(self, hello: Hello) -> bool:
        """Return whether another process of the same party is connected."""
        known = self._hello
        return (
            self._stream is not None
            and known is not None
            and known.instance_id != hello.instance_id
        )

    def receive(self, frame: bytes, max_bytes: int) -> None:
        """Take a reply; a reply to a cancelled request is ignored."""
        self._received += len(frame)
        message = codec.decode(frame, max_bytes)
        if self._open is not None and message.request_id == self._open[1]:
            reply, self._open = self._open[2], None
            if not reply.done():
                reply.set_result(message)


class CoordinatorServer:
    """Accept connections of parties on one port, in a thread of its own."""

    def __init__(
        self,
        address: str,
        tls: Tls,
        names: Sequence[str],
        identify: Callable[[bytes], str],
        log_event: LogEvent = lambda event: None,
        check_hello: Callable[[str, Hello], None] = lambda name, hello: None,
        max_bytes: int = codec.MAX_FRAME_BYTES,
    ) -> None:
        """Start the server.

        Parameters
        ----------
        address
            HOST:PORT to listen on.
        tls
            Certificate and key files.
        names
            Parties that may connect.
        identify
            Returns the party's name for a certificate (PEM).
        log_event
            Receives log events.
        check_hello
            Raises an `XVFLError` to reject a party by its `Hello`.
        max_bytes
            Largest message.
        """
        self._address, self._credentials = address, tls.server_credentials()
        self._identify, self._log_event, self._check_hello = identify, log_event, check_hello
        self._max_bytes = max_bytes
        self._loop = asyncio.new_event_loop()
        self.transports = {name: GrpcTransport(name, self._loop) for name in names}
        self._started: Future[int] = Future()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="coordinator-server", daemon=True)
        self._thread.start()
        self.port = self._started.result(30)

    def close(self) -> None:
        """Close all connections and stop the server."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        server = grpc.aio.server(
            options=[*channel_options(self._max_bytes), ("grpc.so_reuseport", 0)]
        )
        handler = grpc.stream_stream_rpc_method_handler(self._join)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),)
        )
        try:
            port = server.add_secure_port(self._address, self._credentials)
            await server.start()
        except RuntimeError as error:
            text = f"{self._address}: cannot listen on this address; is the port in use? ({error})"
            self._started.set_exception(RunError(text))
            return
        self._started.set_result(port)
        await self._stop.wait()
        await server.stop(0.5)

    async def _join(self, frames: AsyncIterator[bytes], stream: Any) -> None:
        name, transport = "?", None
        try:
            name = self._name(stream)
            transport = self.transports[name]
            hello = await self._read_hello(frames)
            if transport.taken_by(hello):
                self._log_event(
                    {"event": "connection_rejected", "party": name, "reason": DUPLICATE}
                )
                await stream.abort(grpc.StatusCode.ALREADY_EXISTS, DUPLICATE)
            self._check_hello(name, hello)
            transport.connect(stream, hello)
            self._log_event({"event": "connected", "party": name, "instance_id": hello.instance_id})
            async for frame in frames:
                transport.receive(frame, self._max_bytes)
        except XVFLError as error:
            self._log_event({"event": "connection_rejected", "party": name, "reason": str(error)})
            ends = stream.abort if transport is None else partial(transport.end, stream)
            await ends(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        finally:
            if transport is not None and transport.disconnect(stream):
                self._log_event({"event": "disconnected", "party": name})

    def _name(self, stream: Any) -> str:
        certificates = stream.auth_context().get("x509_pem_cert", [])
        if not certificates:
            raise WireError("expected a certificate, got none")
        name = self._identify(bytes(certificates[0]))
        if name not in self.transports:
            raise WireError(
                f"party {name!r} is not in this coordinator's configuration: "
                f"{', '.join(self.transports)}"
            )
        return name

    async def _read_hello(self, frames: AsyncIterator[bytes]) -> Hello:
        async for frame in frames:
            message = codec.decode(frame, self._max_bytes)
            if not isinstance(message, Hello):
                raise WireError(f"expected Hello first, got {type(message).__name__}")
            return message
        raise WireError("expected Hello first, got nothing")


DUPLICATE = "another process of this party is already connected; stop one of them"
CLOSED = "the coordinator closed the connection"
