"""The coordinator's end: the only one that listens. Parties dial in; each gets one `Line`.

The certificate says who calls. A line that breaks and comes back from the same process goes on
where it was: the open question is sent again, and the party gives the answer it gave.
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
from xvfl.wire.tls import METHOD, SERVICE, Tls, options

Note = Callable[[dict[str, Any]], None]
BROKEN = (grpc.RpcError, asyncio.InvalidStateError, grpc.aio.BaseError, grpc.aio.UsageError)
"""What writing to a dying stream raises."""


class Line:
    """One party's line; a `Transport`. Everything but `exchange` runs in the listener's thread."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self.name = name
        self._loop = loop
        self._stream: Any = None
        self._hello: Hello | None = None
        self._open: tuple[bytes, int, Future[Message]] | None = None
        self._writing = asyncio.Lock()
        self._sent = self._received = 0

    def hello(self) -> Hello | None:
        """Give what the party said of itself, while it is there and free to answer."""
        free = self._stream is not None and self._open is None
        return self._hello if free else None

    def exchange(self, message: Message) -> Future[Message]:
        """Ask; the answer comes when it comes, also over a line that broke and came back."""
        answer: Future[Message] = Future()
        frame = codec.encode(message)
        self._loop.call_soon_threadsafe(self._ask, frame, message.turn, answer)
        return answer

    def traffic(self) -> tuple[int, int]:
        """Bytes sent and received so far."""
        return self._sent, self._received

    def close(self) -> None:
        """Hang up."""
        self._loop.call_soon_threadsafe(self._drop)

    def _drop(self) -> None:
        if self._stream is not None:
            ending = self.end(self._stream, grpc.StatusCode.UNAVAILABLE, HUNG_UP)
            self._loop.create_task(ending).add_done_callback(lambda done: done.exception())

    async def end(self, stream: Any, code: grpc.StatusCode, text: str) -> None:
        """End a stream after what is being written to it: gRPC cannot do both at once."""
        async with self._writing if stream is self._stream else asyncio.Lock():
            await stream.abort(code, text)

    def _ask(self, frame: bytes, turn: int, answer: Future[Message]) -> None:
        self._open = (frame, turn, answer)
        self._send_open()

    def _send_open(self) -> None:
        if self._open is not None and self._stream is not None:
            writing = self._write(self._stream, self._writing, self._open[0])
            self._loop.create_task(writing).add_done_callback(lambda done: done.exception())

    async def _write(self, stream: Any, turn: asyncio.Lock, frame: bytes) -> None:
        async with turn:
            try:
                await stream.write(frame)
                self._sent += len(frame)
            except BROKEN:
                return

    def connect(self, stream: Any, hello: Hello) -> None:
        """Take a new stream; a party that started afresh cannot answer what was open."""
        if self._hello is not None and self._hello.life != hello.life and self._open is not None:
            _, _, answer = self._open
            self._open = None
            if not answer.done():
                answer.set_exception(PartyError(f"party {self.name!r} restarted", (self.name,)))
        self._stream, self._hello, self._writing = stream, hello, asyncio.Lock()
        self._send_open()

    def disconnect(self, stream: Any) -> bool:
        """Forget a stream, unless another has taken its place; say whether it was the one."""
        if self._stream is not stream:
            return False
        self._stream = None
        return True

    def taken_by(self, hello: Hello) -> bool:
        """Say whether another process of this name is on the line."""
        known = self._hello
        return self._stream is not None and known is not None and known.life != hello.life

    def hear(self, frame: bytes, largest: int) -> None:
        """Take an answer; one to a question given up long ago is passed over."""
        self._received += len(frame)
        message = codec.decode(frame, largest)
        if self._open is not None and message.turn == self._open[1]:
            answer, self._open = self._open[2], None
            if not answer.done():
                answer.set_result(message)


class CoordinatorServer:
    """Accepts parties on one port, in a thread of its own."""

    def __init__(
        self,
        address: str,
        tls: Tls,
        names: Sequence[str],
        identify: Callable[[bytes], str],
        note: Note = lambda event: None,
        welcome: Callable[[str, Hello], None] = lambda name, hello: None,
        largest: int = codec.LARGEST,
    ) -> None:
        """Listen for the named parties; `identify` names the owner of a certificate (PEM).

        `welcome` may refuse what a party says of itself.
        """
        self._address, self._credentials = address, tls.for_server()
        self._identify, self._note, self._welcome = identify, note, welcome
        self._largest = largest
        self._loop = asyncio.new_event_loop()
        self.lines = {name: Line(name, self._loop) for name in names}
        self._started: Future[int] = Future()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="listener", daemon=True)
        self._thread.start()
        self.port = self._started.result(30)

    def close(self) -> None:
        """Hang up on all_parties and stop listening."""
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
        server = grpc.aio.server(options=[*options(self._largest), ("grpc.so_reuseport", 0)])
        handler = grpc.stream_stream_rpc_method_handler(self._join)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),)
        )
        try:
            port = server.add_secure_port(self._address, self._credentials)
            await server.start()
        except RuntimeError as error:
            text = f"{self._address}: cannot listen here; is the port in use? ({error})"
            self._started.set_exception(RunError(text))
            return
        self._started.set_result(port)
        await self._stop.wait()
        await server.stop(0.5)

    async def _join(self, frames: AsyncIterator[bytes], stream: Any) -> None:
        name, line = "?", None
        try:
            name = self._name(stream)
            line = self.lines[name]
            hello = await self._first(frames)
            if line.taken_by(hello):
                self._note({"event": "connection_rejected", "party": name, "reason": TWICE})
                await stream.abort(grpc.StatusCode.ALREADY_EXISTS, TWICE)
            self._welcome(name, hello)
            line.connect(stream, hello)
            self._note({"event": "connected", "party": name, "life": hello.life})
            async for frame in frames:
                line.hear(frame, self._largest)
        except XVFLError as error:
            self._note({"event": "connection_rejected", "party": name, "reason": str(error)})
            ends = stream.abort if line is None else partial(line.end, stream)
            await ends(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        finally:
            if line is not None and line.disconnect(stream):
                self._note({"event": "disconnected", "party": name})

    def _name(self, stream: Any) -> str:
        shown = stream.auth_context().get("x509_pem_cert", [])
        if not shown:
            raise WireError("expected a certificate, got none")
        name = self._identify(bytes(shown[0]))
        if name not in self.lines:
            raise WireError(
                f"party {name!r} is not on this coordinator's list: {', '.join(self.lines)}"
            )
        return name

    async def _first(self, frames: AsyncIterator[bytes]) -> Hello:
        async for frame in frames:
            message = codec.decode(frame, self._largest)
            if not isinstance(message, Hello):
                raise WireError(f"expected Hello first, got {type(message).__name__}")
            return message
        raise WireError("expected Hello first, got nothing")


TWICE = "another party of this name is connected already; stop one of them"
HUNG_UP = "the coordinator hung up"
