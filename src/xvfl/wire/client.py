"""A party's gRPC client: connects to the coordinator, replies to requests, and reconnects."""

import asyncio
import random
import re
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc

from xvfl.errors import Fault, PartyError, RunError, WireError, XVFLError
from xvfl.system.printable import one_line
from xvfl.wire import codec, protocol
from xvfl.wire.limited_log import LogEvent
from xvfl.wire.limits import CHUNK_BYTES, RECHECK_S, SMALL_BYTES, FrameAssembler, split_frame
from xvfl.wire.messages import Challenge, Hello, Message, Proof
from xvfl.wire.tls import CALL_PATH, PATH, Tls, channel_options

MIN_BACKOFF_S, MAX_BACKOFF_S = 0.1, 5.0
"""Seconds before a reconnection: doubled each time, up to the maximum."""
DUPLICATE_TIMEOUT_S = 30.0
"""How long to retry while the coordinator is still connected to an older process of this party."""
REPEAT_S = 600.0
"""Seconds until the same reason for a lost connection is logged again."""
DRAIN_S = 3.0
"""Time to reply to an open request before a connection is closed."""
MAX_TLS_FAILURES = 3
"""Consecutive TLS handshakes that fail before the client gives up."""
PERMANENT = (
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNIMPLEMENTED,
)
"""Errors that a reconnection would not change."""
REFUSED = grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.PERMISSION_DENIED
"""The codes that an operator of either side can correct."""
OLD_REFUSAL = re.compile(r"expected protocol version ([1-3]), got \d")
"""How a coordinator before 0.4 rejects a newer party."""
BROKEN = (
    *("Stream removed", "Socket closed", "recvmsg", "sendmsg", "GOAWAY", "Connection reset"),
    *("Broken pipe", "end of TCP stream", "keepalive", "Endpoint", "Cancelling all calls"),
)
"""How gRPC's texts of a broken connection begin."""
NONCE_BYTES = 32
CheckProof = Callable[[bytes, Proof], None]
"""Raise if the proof for a nonce does not show a coordinator with a valid certificate."""


@dataclass(frozen=True)
class _Session:
    """How a connection ended."""

    greeted: bool
    """Whether the coordinator proved its certificate."""
    received: bool
    """Whether a request arrived."""
    code: grpc.StatusCode
    text: str


class PartyClient:
    """Handle a coordinator's requests until the run has ended."""

    def __init__(
        self,
        address: str,
        credentials: Callable[[], grpc.ChannelCredentials],
        hello: Callable[[], Hello],
        handle: Callable[[bytes], bytes],
        is_over: Callable[[], bool],
        log_event: LogEvent = lambda event: None,
        max_bytes: int = codec.MAX_FRAME_BYTES,
        reconnect_timeout: float = 3600.0,
        check_proof: CheckProof = lambda nonce, proof: None,
        recheck: float = RECHECK_S,
        diagnose: Callable[[], str | None] = lambda: None,
        on_clock: Callable[[float], object] = lambda time: None,
    ) -> None:
        """Reply with `handle` until `is_over`; raise after `reconnect_timeout` s offline.

        `credentials` and `check_proof` are called for a new connection, `check_proof` also every
        `recheck` seconds after that. `diagnose` returns why TLS failed, and `on_clock` receives the
        coordinator's time.
        """
        self._address, self._credentials, self._diagnose = address, credentials, diagnose
        self._hello, self._handle = hello, handle
        self._is_over, self._log_event = is_over, log_event
        self._options = [*channel_options(CHUNK_BYTES), ("grpc.enable_retries", 0)]
        self._max_bytes, self._check_proof, self._recheck = max_bytes, check_proof, recheck
        self._give_up_s, self._on_clock = reconnect_timeout, on_clock
        self._stopped = threading.Event()
        self._stop: Callable[[], object] = lambda: None
        self.connected = self._busy = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._channel: Any = None
        self._version = protocol.BASE
        """Version of the protocol that the coordinator speaks, too."""
        self._problem = ""
        """Why this party ends the connection."""

    def call(self, message: Message, timeout: float) -> Message:
        """Send a request to the coordinator from another thread; raise without a timely reply."""
        loop, channel = self._loop, self._channel
        if loop is None or channel is None:
            raise PartyError("no connection to the coordinator")

        async def request() -> bytes:
            frame = codec.encode(message, self._version)
            reply: bytes = await channel.unary_unary(CALL_PATH)(frame)
            return reply

        future = asyncio.run_coroutine_threadsafe(request(), loop)
        try:
            return codec.decode(future.result(timeout), CHUNK_BYTES)
        except TimeoutError as error:
            future.cancel()
            raise PartyError("no answer of the coordinator in time") from error
        except (grpc.RpcError, CancelledError, grpc.aio.UsageError) as error:
            raise PartyError("the connection to the coordinator broke") from error

    def run(self) -> None:
        """Handle requests; return when the run has ended or `stop` was called."""
        asyncio.run(self._serve())

    def stop(self) -> None:
        """Close the connection and make `run` return; callable from any thread.

        A request that is being handled is replied to first, unless it takes longer than `DRAIN_S`.
        """
        self._stopped.set()
        # The event loop may be closed already.
        with suppress(RuntimeError):
            self._stop()

    async def _serve(self) -> None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        self._stop = lambda: loop.call_soon_threadsafe(stop.set)
        waiting = asyncio.create_task(stop.wait())
        policy = _ReconnectPolicy(self._address, self._give_up_s)
        told, told_at = "", 0.0
        while not self._is_over() and not self._stopped.is_set():
            session = asyncio.create_task(self._session())
            await asyncio.wait({session, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if not session.done():
                if self._busy:
                    await asyncio.wait({session}, timeout=DRAIN_S)
                session.cancel()
                await asyncio.wait({session})
                return
            ended = session.result()
            if self._is_over():
                break
            why = None
            if not ended.greeted and ended.code == grpc.StatusCode.UNAVAILABLE:
                why = await asyncio.to_thread(self._diagnose)
            wait = policy.next_wait(ended, why)
            if (reason := why or ended.text) != told or time.monotonic() > told_at + REPEAT_S:
                event = {"event": "connection_lost", "reason": reason}
                self._log_event({**event, "retry_in_s": round(wait, 2)})
                told, told_at = reason, time.monotonic()
            await asyncio.wait({waiting}, timeout=wait)
        waiting.cancel()

    async def _session(self) -> _Session:
        """Serve one connection."""
        greeted = received = False
        self._problem = ""
        async with grpc.aio.secure_channel(
            self._address, self._credentials(), options=self._options
        ) as channel:
            call = channel.stream_stream(PATH)()
            checking: asyncio.Task[None] | None = None
            try:
                nonce = secrets.token_bytes(NONCE_BYTES)
                await call.write(codec.encode(Challenge(0, nonce)))
                if (frame := await self._read(call, SMALL_BYTES)) is not None:
                    proof = codec.decode(frame, SMALL_BYTES)
                    if not isinstance(proof, Proof):
                        raise WireError(f"expected Proof first, got {type(proof).__name__}")
                    await asyncio.to_thread(self._check_proof, nonce, proof)
                    self._version = protocol.agree(proof.side)
                    self._on_clock(proof.time)
                    greeted = self.connected = True
                    self._loop, self._channel = asyncio.get_running_loop(), channel
                    checking = asyncio.create_task(self._check_again(call, nonce, proof))
                    await call.write(codec.encode(self._hello(), self._version))
                while frame is not None and (frame := await self._read(call, self._max_bytes)):
                    received = self._busy = True
                    reply = await asyncio.to_thread(self._handle, frame)
                    for chunk in split_frame(reply):
                        await call.write(chunk)
                    self._busy = False
                    if self._is_over() or self._stopped.is_set():
                        await call.done_writing()
            except (grpc.RpcError, asyncio.InvalidStateError, grpc.aio.UsageError):
                pass
            except asyncio.CancelledError:
                # A call that `_check_again` has cancelled raises this, too.
                if not self._problem:
                    raise
            except WireError as error:
                fault: Fault = "refused" if isinstance(error, protocol.ProtocolError) else "away"
                text = f"the coordinator at {self._address}: {error}"
                raise PartyError(text, fault=fault) from error
            except XVFLError as error:
                self._problem = str(error)
            finally:
                self.connected, self._busy, self._channel = False, False, None
                if checking is not None:
                    checking.cancel()
            if self._problem:
                return _Session(greeted, received, grpc.StatusCode.ABORTED, self._problem)
            text = one_line(await call.details() or "the connection was closed")
            text = _explain(text, self._address)
            return _Session(greeted, received, await call.code(), text)

    async def _read(self, call: Any, max_bytes: int) -> bytes | None:
        """Read a frame; return None if the stream has ended."""
        assembler = FrameAssembler()
        while (chunk := await call.read()) is not grpc.aio.EOF:
            if (frame := assembler.add(chunk, lambda request_id: max_bytes)) is not None:
                return frame
        return None

    async def _check_again(self, call: Any, nonce: bytes, proof: Proof) -> None:
        """Cancel the call when the coordinator's certificate is not trusted any more."""
        while not self._problem:
            await asyncio.sleep(self._recheck)
            try:
                await asyncio.to_thread(self._check_proof, nonce, proof)
            except XVFLError as error:
                self._problem = str(error)
            except Exception as error:
                self._problem = f"the certificate cannot be checked ({error!r})"
        call.cancel()


def call_coordinator(
    address: str, tls: Tls, message: Message, timeout: float, check_proof: CheckProof
) -> Message:
    """Send one request to the coordinator, beside the connection of the party's own process.

    The coordinator must prove its certificate first, as for `PartyClient`.
    """
    options, nonce = channel_options(CHUNK_BYTES), secrets.token_bytes(NONCE_BYTES)
    with grpc.secure_channel(address, tls.client_credentials(), options) as channel:
        call = channel.unary_unary(CALL_PATH)
        try:
            reply = call(codec.encode(Challenge(0, nonce)), timeout=timeout)
            if not isinstance(proof := codec.decode(reply, CHUNK_BYTES), Proof):
                return proof
            check_proof(nonce, proof)
            version = protocol.agree(proof.side)
            reply = call(codec.encode(message, version), timeout=timeout)
        except grpc.RpcError as error:
            details = error.details() if isinstance(error, grpc.Call) else str(error)
            raise PartyError(
                f"no reply of the coordinator at {address}: {one_line(str(details))}"
            ) from error
    return codec.decode(reply, CHUNK_BYTES)


def _explain(text: str, address: str) -> str:
    """Describe why a connection was rejected, failed or broke, and what to do."""
    if old := OLD_REFUSAL.search(text):
        return protocol.no_common_version(protocol.side_of_version(int(old[1])))
    if text.startswith("failed to connect to all addresses"):
        return f"no coordinator answers at {address} ({text.rpartition(': ')[2]})"
    if text.startswith(BROKEN):
        return f"the connection to the coordinator at {address} broke ({text})"
    return text


class _ReconnectPolicy:
    """Decide whether and when to reconnect."""

    def __init__(self, address: str, reconnect_timeout: float) -> None:
        self._address, self._give_up_s = address, reconnect_timeout
        self._last_contact = time.monotonic()
        self._wait = MIN_BACKOFF_S
        self._duplicate_since: float | None = None
        self._n_tls_failures = 0

    def next_wait(self, ended: _Session, why: str | None) -> float:
        """Return the seconds to wait; raise if a reconnection would not help."""
        now, code, text = time.monotonic(), ended.code, ended.text
        if ended.greeted:
            self._last_contact = now
        if ended.received:
            self._wait = MIN_BACKOFF_S
        duplicate = code == grpc.StatusCode.ALREADY_EXISTS
        self._duplicate_since = (self._duplicate_since or now) if duplicate else None
        if code in PERMANENT or (
            self._duplicate_since and now - self._duplicate_since > DUPLICATE_TIMEOUT_S
        ):
            fault: Fault = "refused" if code in REFUSED else "away"
            text = f"the coordinator at {self._address} rejected the connection: {text}"
            raise PartyError(text, fault=fault)
        self._n_tls_failures = self._n_tls_failures + 1 if why else 0
        if self._n_tls_failures >= MAX_TLS_FAILURES:
            raise PartyError(f"no connection to {self._address}: {why}")
        if now - self._last_contact > self._give_up_s:
            raise RunError(f"no coordinator at {self._address} for {self._give_up_s:.0f} s: {text}")
        wait, self._wait = self._wait, min(2 * self._wait, MAX_BACKOFF_S)
        return wait * random.uniform(0.8, 1.2)
