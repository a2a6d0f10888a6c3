"""A party's gRPC client: connects to the coordinator, replies to requests, and reconnects."""

import asyncio
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import grpc

from xvfl.errors import PartyError, RunError
from xvfl.wire import codec
from xvfl.wire.messages import Hello
from xvfl.wire.tls import PATH, Tls, channel_options
from xvfl.wire.tls_diagnosis import diagnose_tls

MIN_BACKOFF_S, MAX_BACKOFF_S = 0.1, 5.0
"""Seconds before a reconnection: doubled each time, up to the maximum."""
DUPLICATE_TIMEOUT_S = 30.0
"""How long to retry while the coordinator is still connected to an older process of this party."""
MAX_TLS_FAILURES = 3
"""Consecutive TLS handshakes that fail for the same reason before the client gives up."""
PERMANENT = (
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNIMPLEMENTED,
)
"""Errors that a reconnection would not change."""


class PartyClient:
    """Handle a coordinator's requests until the run has ended."""

    def __init__(
        self,
        address: str,
        tls: Tls,
        hello: Callable[[], Hello],
        handle: Callable[[bytes], bytes],
        is_over: Callable[[], bool],
        log_event: Callable[[dict[str, Any]], None] = lambda event: None,
        max_bytes: int = codec.MAX_FRAME_BYTES,
        reconnect_timeout: float = 3600.0,
    ) -> None:
        """Reply with `handle` until `is_over`; raise after `reconnect_timeout` s offline."""
        self._address, self._tls, self._credentials = address, tls, tls.client_credentials()
        self._hello, self._handle = hello, handle
        self._is_over, self._log_event = is_over, log_event
        self._options = [*channel_options(max_bytes), ("grpc.enable_retries", 0)]
        self._give_up_s = reconnect_timeout
        self._stopped = threading.Event()
        self._stop: Callable[[], object] = lambda: None
        self.connected = False

    def run(self) -> None:
        """Handle requests; return when the run has ended or `stop` was called."""
        asyncio.run(self._serve())

    def stop(self) -> None:
        """Close the connection and make `run` return; callable from any thread."""
        self._stopped.set()
        self._stop()

    async def _serve(self) -> None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        self._stop = lambda: loop.call_soon_threadsafe(stop.set)
        waiting = asyncio.create_task(stop.wait())
        policy = _ReconnectPolicy(self._address, self._give_up_s)
        while not self._is_over() and not self._stopped.is_set():
            session = asyncio.create_task(self._session())
            await asyncio.wait({session, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if not session.done():
                session.cancel()
                await asyncio.wait({session})
                return
            received, code, text = session.result()
            if self._is_over():
                break
            why = None if received else await self._reason(code)
            wait = policy.next_wait(received, code, text, why)
            self._log_event(
                {"event": "connection_lost", "reason": why or text, "retry_in_s": round(wait, 2)}
            )
            await asyncio.wait({waiting}, timeout=wait)
        waiting.cancel()

    async def _reason(self, code: grpc.StatusCode) -> str | None:
        if code != grpc.StatusCode.UNAVAILABLE:
            return None
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, diagnose_tls, self._address, self._tls)

    async def _session(self) -> tuple[bool, grpc.StatusCode, str]:
        """Serve one connection; return whether a request arrived, status code and details."""
        received = False
        loop = asyncio.get_running_loop()
        async with grpc.aio.secure_channel(
            self._address, self._credentials, options=self._options
        ) as channel:
            call = channel.stream_stream(PATH)()
            try:
                await call.write(codec.encode(self._hello()))
                while (frame := await call.read()) is not grpc.aio.EOF:
                    received = self.connected = True
                    reply = await loop.run_in_executor(None, self._handle, frame)
                    await call.write(reply)
                    if self._is_over():
                        await call.done_writing()
            except (grpc.RpcError, asyncio.InvalidStateError, grpc.aio.UsageError):
                pass
            finally:
                self.connected = False
            return received, await call.code(), await call.details() or "the connection was closed"


class _ReconnectPolicy:
    """Decide whether and when to reconnect."""

    def __init__(self, address: str, reconnect_timeout: float) -> None:
        self._address, self._give_up_s = address, reconnect_timeout
        self._last_contact = time.monotonic()
        self._wait = MIN_BACKOFF_S
        self._duplicate_since: float | None = None
        self._last_reason, self._n_same = "", 0

    def next_wait(self, received: bool, code: grpc.StatusCode, text: str, why: str | None) -> float:
        """Return the seconds to wait; raise if a reconnection would not help."""
        now = time.monotonic()
        if received:
            self._last_contact, self._wait = now, MIN_BACKOFF_S
        duplicate = code == grpc.StatusCode.ALREADY_EXISTS
        self._duplicate_since = (self._duplicate_since or now) if duplicate else None
        if code in PERMANENT or (
            self._duplicate_since and now - self._duplicate_since > DUPLICATE_TIMEOUT_S
        ):
            raise PartyError(f"the coordinator at {self._address} rejected the connection: {text}")
        same = why is not None and why == self._last_reason
        self._n_same = self._n_same + 1 if same else 1
        self._last_reason = why or ""
        if why is not None and self._n_same >= MAX_TLS_FAILURES:
            raise PartyError(f"no connection to {self._address}: {why}")
        if now - self._last_contact > self._give_up_s:
            raise RunError(f"no coordinator at {self._address} for {self._give_up_s:.0f} s: {text}")
        wait, self._wait = self._wait, min(2 * self._wait, MAX_BACKOFF_S)
        return wait * random.uniform(0.8, 1.2)
