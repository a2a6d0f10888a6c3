"""The coordinator's gRPC server. Parties connect to it; each has one `GrpcTransport`.

The client certificate identifies the party. When a connection breaks and the same process connects
again, the open request is sent again, and the party replies from its cache.
"""

import asyncio
import tempfile
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from xvfl.errors import CertificateError, NotYetError, RunError, WireError, XVFLError
from xvfl.wire import codec, protocol
from xvfl.wire.front import Front
from xvfl.wire.grpc_transport import END_TIMEOUT_S, Connection, GrpcTransport
from xvfl.wire.limited_log import LimitedLog, LogEvent
from xvfl.wire.limits import (
    CHUNK_BYTES,
    HELLO_TIMEOUT_S,
    MAX_CALLS,
    MAX_PENDING,
    MAX_STREAMS,
    RECHECK_S,
    SMALL_BYTES,
    FrameAssembler,
    ReplyLimit,
    reply_limit,
)
from xvfl.wire.messages import Challenge, ErrorReply, Hello, Message, Proof, Withdraw
from xvfl.wire.tls import CALL_METHOD, METHOD, SERVICE, channel_options

Prove = Callable[[bytes, bytes], tuple[bytes, bytes]]
"""Return the coordinator's certificate and its signature, for a nonce and a party's certificate."""
Status = Callable[[], dict[str, Any]]
Answer = Callable[[str, Message], Message]
"""Answer a request of a party, given by its name."""
DUPLICATE = "another process of this party is already connected; stop one of them"
UNLISTED = "this coordinator does not accept this certificate's name; ask its operator"
NOT_TRUSTED = (
    "the coordinator does not accept this certificate: it is revoked, expired, or not issued by "
    "its CA; request a new one"
)
INTERNAL = "internal error at the coordinator; see the coordinator's log"
UNEXPECTED_END = f"the stream ended, or a message was larger than {CHUNK_BYTES} bytes"


def reject_request(name: str, message: Message) -> Message:
    """Accept no request of a party."""
    raise WireError(f"{type(message).__name__}: this coordinator answers no such request")


class CoordinatorServer:
    """Accept connections of parties on one port, in a thread of its own."""

    def __init__(
        self,
        address: str,
        credentials: grpc.ServerCredentials,
        names: Sequence[str],
        identify: Callable[[bytes], str],
        log_event: LogEvent = lambda event: None,
        check_hello: Callable[[str, Hello], None] = lambda name, hello: None,
        prove: Prove = lambda nonce, certificate: (b"", b""),
        limit: ReplyLimit | None = None,
        max_pending: int = MAX_PENDING,
        hello_timeout: float = HELLO_TIMEOUT_S,
        recheck: float = RECHECK_S,
        answer: Answer = reject_request,
        on_recheck: Callable[[], object] = lambda: None,
        on_clock: Callable[[str, float], object] = lambda name, time: None,
        status: Status = dict,
        purposes: Sequence[str] = (),
    ) -> None:
        """Start the server.

        Parameters
        ----------
        address
            HOST:PORT to listen on.
        credentials
            Certificate and key, and the authorities that are trusted.
        names
            Parties that may connect.
        identify
            Returns the party's name for a certificate (PEM); raises if it is not trusted any more.
        log_event
            Receives log events.
        check_hello
            Raises an `XVFLError` to reject a party by its `Hello`.
        prove
            Signs a party's nonce with the coordinator's certificate.
        limit
            Bounds the reply to a request.
        max_pending
            Largest number of connections without an accepted `Hello`.
        hello_timeout
            Seconds from a new connection to its `Hello`.
        recheck
            Seconds between two checks of the certificates of connected parties.
        answer
            Answers a request of a connected party, given by its name; by default none is accepted.
        on_recheck
            Called in a thread with every check of certificates.
        on_clock
            Receives the time of each party that connects.
        status
            Describes certificates and clocks.
        purposes
            Purposes for which a party has a connection of its own, beside that of `transports`.
        """
        self._address, self._credentials = address, credentials
        self._identify, self._check_hello, self._prove = identify, check_hello, prove
        self._log_event, self._recheck = log_event, recheck
        self._hello_timeout, self._answer, self._on_recheck = hello_timeout, answer, on_recheck
        self._on_clock, self.status = on_clock, status
        self._limited_log = LimitedLog(log_event)
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(self._handle_exception)
        self._folder = tempfile.TemporaryDirectory(prefix="xvfl-", ignore_cleanup_errors=True)
        self._front = Front(Path(self._folder.name), max_pending, self._on_drop, hello_timeout)
        self._limit = limit or reply_limit(codec.MAX_FRAME_BYTES)
        self.transports: dict[str, GrpcTransport] = {}
        """Connections to parties, by name, of any purpose without connections of its own."""
        self.by_purpose: dict[str, dict[str, GrpcTransport]] = {purpose: {} for purpose in purposes}
        """Connections of a purpose, by party."""
        self.accept_parties(names)
        self._calls: Counter[str] = Counter()
        """Requests of each party that are being answered."""
        self._started: Future[int] = Future()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="coordinator-server", daemon=True)
        self._thread.start()
        self.port = self._started.result(30)

    def accept_parties(self, names: Iterable[str]) -> None:
        """Accept further parties; it may be called from another thread."""
        for transports in (*self.by_purpose.values(), self.transports):
            for name in names:
                if name not in transports:
                    transports[name] = GrpcTransport(
                        name, self._loop, self._limit, self._front.drop
                    )

    def reconnect(self, name: str) -> None:
        """Close the connection to a party in `transports`; it connects again.

        It may be called from another thread.
        """
        transport = self.transports[name]
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(transport.end, grpc.StatusCode.UNAVAILABLE, RECONNECT)

    def close(self) -> None:
        """Close all connections and stop the server."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        except Exception as error:
            if self._started.done():
                self._log_event({"event": "internal_error", "traceback": traceback.format_exc()})
            else:
                self._started.set_exception(error)
        finally:
            self._loop.close()
            self._folder.cleanup()
            self._limited_log.close()

    async def _serve(self) -> None:
        streams = ("grpc.max_concurrent_streams", MAX_STREAMS + MAX_CALLS)
        server = grpc.aio.server(options=[*channel_options(CHUNK_BYTES), streams])
        handlers = {
            METHOD: grpc.stream_stream_rpc_method_handler(self._join),
            CALL_METHOD: grpc.unary_unary_rpc_method_handler(self._call),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        server.add_secure_port(f"unix:{self._front.target}", self._credentials)
        await server.start()
        tasks = []
        try:
            port = await self._front.listen(self._address)
            tasks = [
                self._loop.create_task(self._repeat(self._check_certificates)),
                self._loop.create_task(self._repeat(partial(asyncio.to_thread, self._on_recheck))),
            ]
            self._started.set_result(port)
            await self._stop.wait()
        finally:
            for task in tasks:
                task.cancel()
            await server.stop(0.5)
            await self._front.close()
            # gRPC does not wait for the tasks of its streams, and one that is pending when the loop
            # closes prints a traceback (https://github.com/grpc/grpc/issues/37239).
            others = asyncio.all_tasks() - {asyncio.current_task()}
            if others:
                await asyncio.wait(others, timeout=END_TIMEOUT_S)

    async def _repeat(self, action: Callable[[], Any]) -> None:
        while True:
            await asyncio.sleep(self._recheck)
            try:
                await action()
            except Exception as error:
                # An error must not end the checks of certificates.
                self._limited_log({"event": "internal_error", "reason": repr(error)})

    async def _join(self, unused: Any, stream: Any) -> None:
        peer, name, connection, transport = stream.peer(), "?", None, None
        try:
            certificate = _certificate(stream)
            name = await self._accepted_name(certificate)
            async with asyncio.timeout(self._hello_timeout):
                challenge = await self._greet(stream, certificate, name)
                hello = await self._read(stream, Hello)
            transport = self.by_purpose.get(hello.purpose, self.transports)[name]
            if transport.taken_by(hello):
                self._reject(name, DUPLICATE, peer)
                await stream.abort(grpc.StatusCode.ALREADY_EXISTS, DUPLICATE)
            self._check_hello(name, hello)
            version = protocol.agree(challenge.side)
            connection = Connection(stream, hello, certificate, version)
            transport.connect(connection)
            self._front.set_pending(peer, False)
            event = {"event": "connected", "party": name, "purpose": hello.purpose}
            about = {"protocol": version, "release": challenge.side.release}
            self._limited_log({**event, "instance_id": hello.instance_id, **about})
            while (chunk := await stream.read()) is not grpc.aio.EOF:
                transport.receive(connection, chunk)
            if not connection.assembler.complete:
                raise WireError("frame: the connection ended before the frame")
        except XVFLError as error:
            self._reject(name, str(error), peer)
            code, text = _status(error)
            if connection is None or transport is None:
                await stream.abort(code, text)
            else:
                await transport.abort(connection, code, text)
        except TimeoutError:
            self._reject(name, f"no Hello within {self._hello_timeout:g} s", peer)
            await stream.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "expected Hello")
        except (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError):
            raise
        except Exception:
            # gRPC would send the text of the exception.
            self._log_event({"event": "internal_error", "traceback": traceback.format_exc()})
            await stream.abort(grpc.StatusCode.INTERNAL, INTERNAL)
        finally:
            if transport is not None and connection and transport.disconnect(connection):
                purpose = connection.hello.purpose
                self._limited_log({"event": "disconnected", "party": name, "purpose": purpose})
            self._front.set_pending(peer, True)

    async def _call(self, frame: bytes, context: Any) -> bytes:
        """Answer a request of a party that is connected.

        `Withdraw` needs no stream, nor does the `Challenge` before it.
        """
        request_id, version = 0, protocol.BASE
        try:
            certificate = _certificate(context)
            name = await self._accepted_name(certificate)
            message = codec.decode(frame, CHUNK_BYTES)
            request_id, version = message.request_id, codec.frame_version(frame)
            if isinstance(message, Challenge):
                protocol.agree(message.side)
                return codec.encode(await self._sign(message, certificate))
            if not self._is_connected(name) and not isinstance(message, Withdraw):
                raise WireError("expected a stream with an accepted Hello first")
            reply = await self._answer_in_thread(name, message)
        except XVFLError as error:
            _, text = _status(error)
            reply = ErrorReply(request_id, type(error).__name__, text)
        except Exception:
            self._log_event({"event": "internal_error", "traceback": traceback.format_exc()})
            reply = ErrorReply(request_id, "RuntimeError", INTERNAL)
        return codec.encode(reply, version)

    def _is_connected(self, name: str) -> bool:
        every = (*self.by_purpose.values(), self.transports)
        return any(each[name].connection is not None for each in every)

    async def _answer_in_thread(self, name: str, message: Message) -> Message:
        """Answer a few requests of a party at once: the same threads check certificates."""
        if self._calls[name] >= MAX_CALLS:
            raise WireError(f"expected at most {MAX_CALLS} requests at once; try again")
        self._calls[name] += 1
        answer = self._loop.create_task(asyncio.to_thread(self._answer, name, message))

        def end(done: "asyncio.Task[Message]") -> None:
            self._calls[name] -= 1
            # Nobody else looks at the error of a request that the party has cancelled.
            if not done.cancelled():
                done.exception()

        answer.add_done_callback(end)
        # A request that is cancelled still takes its thread.
        return await asyncio.shield(answer)

    async def _accepted_name(self, certificate: bytes) -> str:
        name = await asyncio.to_thread(self._identify, certificate)
        if name not in self.transports:
            raise UnlistedPartyError(
                f"party {name!r} is not in this coordinator's configuration: "
                f"{', '.join(self.transports)}"
            )
        return name

    async def _greet(self, stream: Any, certificate: bytes, name: str) -> Challenge:
        """Read the party's `Challenge` and reply to it."""
        challenge: Challenge = await self._read(stream, Challenge)
        protocol.agree(challenge.side)
        self._on_clock(name, challenge.time)
        await stream.write(codec.encode(await self._sign(challenge, certificate)))
        return challenge

    async def _sign(self, challenge: Challenge, certificate: bytes) -> Proof:
        signed = await asyncio.to_thread(self._prove, challenge.nonce, certificate)
        return Proof(challenge.request_id, *signed)

    async def _read(self, stream: Any, kind: type[Any]) -> Any:
        chunk = await stream.read()
        if chunk is grpc.aio.EOF:
            raise WireError(f"expected {kind.__name__}, got nothing: {UNEXPECTED_END}")
        message: Message | None = None
        if (frame := FrameAssembler().add(chunk, lambda request_id: SMALL_BYTES)) is not None:
            message = codec.decode(frame, SMALL_BYTES)
        if not isinstance(message, kind):
            raise WireError(f"expected {kind.__name__} first, got {type(message).__name__}")
        return message

    async def _check_certificates(self) -> None:
        """Disconnect parties whose certificate was revoked or has expired."""
        every = (*self.by_purpose.values(), self.transports)
        for transport in [each for transports in every for each in transports.values()]:
            connection = transport.connection
            if connection is None:
                continue
            try:
                await asyncio.to_thread(self._identify, connection.certificate)
            except XVFLError as error:
                self._reject(transport.name, str(error), connection.stream.peer())
                transport.fail_open_request("was disconnected: its certificate is not accepted")
                transport.end(*_status(error))

    def _reject(self, name: str, reason: str, peer: str) -> None:
        event = {"event": "connection_rejected", "party": name, "reason": reason}
        self._limited_log({**event, "address": self._front.address(peer)})

    def _on_drop(self, address: str, reason: str) -> None:
        self._limited_log({"event": "connection_dropped", "reason": reason, "address": address})

    def _handle_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log errors that no caller receives, such as a missing file descriptor."""
        error = context.get("exception")
        reason = str(error) if isinstance(error, OSError) else repr(error)
        event = {"event": "connection_error", "reason": f"{context.get('message')}: {reason}"}
        self._limited_log(event)


class UnlistedPartyError(WireError):
    """A certificate is valid, but its name is not in the configuration."""


def _certificate(stream: Any) -> bytes:
    """Return the peer's certificate, and those of intermediate authorities that it has sent."""
    found = stream.auth_context()
    if not (certificates := found.get("x509_pem_cert")):
        raise WireError("expected a certificate, got none")
    own, chain = bytes(certificates[0]), bytes(found.get("x509_pem_cert_chain", [b""])[0])
    # At a server, the chain is without the peer's own certificate.
    return chain if chain.startswith(own) else own + chain


def _status(error: XVFLError) -> tuple[grpc.StatusCode, str]:
    """Return the status that a peer receives: no path, and no name but its own."""
    if isinstance(error, UnlistedPartyError):
        return grpc.StatusCode.PERMISSION_DENIED, UNLISTED
    if isinstance(error, CertificateError):
        return grpc.StatusCode.PERMISSION_DENIED, NOT_TRUSTED
    if isinstance(error, WireError):
        return grpc.StatusCode.FAILED_PRECONDITION, str(error)
    if isinstance(error, NotYetError):
        return grpc.StatusCode.UNAVAILABLE, str(error)
    if isinstance(error, RunError):
        return grpc.StatusCode.UNAVAILABLE, RETRY
    return grpc.StatusCode.INTERNAL, INTERNAL


RECONNECT = "the coordinator asks this party to connect again"
RETRY = "the coordinator cannot check certificates at the moment; try again later"
