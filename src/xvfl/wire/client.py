"""A party's end: dials out, answers, and dials again when the line breaks."""

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
from xvfl.wire.tls import PATH, Tls, options
from xvfl.wire.tls_diagnosis import diagnose_tls

FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 5.0
"""Seconds before dialling again: doubled each time, up to the longest."""
TWICE_S = 30.0
"""How long to try while the coordinator still sees an older process of the same name."""
TRIES = 3
"""Handshakes that must fail for the same reason before a party believes it."""
FINAL = (
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNIMPLEMENTED,
)
"""Refusals that dialling again would not change."""


class PartyClient:
    """Serves a coordinator until the run is over."""

    def __init__(
        self,
        address: str,
        tls: Tls,
        hello: Callable[[], Hello],
        handle: Callable[[bytes], bytes],
        over: Callable[[], bool],
        note: Callable[[dict[str, Any]], None] = lambda event: None,
        largest: int = codec.LARGEST,
        give_up_s: float = 3600.0,
    ) -> None:
        """Answer with `handle` until `over`; give up when nobody answers for that long."""
        self._address, self._tls, self._credentials = address, tls, tls.for_client()
        self._hello, self._handle, self._over, self._note = hello, handle, over, note
        self._options = [*options(largest), ("grpc.enable_retries", 0)]
        self._give_up_s = give_up_s
        self._stopped = threading.Event()
        self._stop: Callable[[], object] = lambda: None
        self.connected = False

    def run(self) -> None:
        """Serve; returns when the run is over or `stop` was called."""
        asyncio.run(self._serve())

    def stop(self) -> None:
        """Hang up and return, from any thread."""
        self._stopped.set()
        self._stop()

    async def _serve(self) -> None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        self._stop = lambda: loop.call_soon_threadsafe(stop.set)
        waiting = asyncio.create_task(stop.wait())
        patience = _Patience(self._address, self._give_up_s)
        while not self._over() and not self._stopped.is_set():
            session = asyncio.create_task(self._session())
            await asyncio.wait({session, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if not session.done():
                session.cancel()
                await asyncio.wait({session})
                return
            spoke, code, text = session.result()
            if self._over():
                break
            why = None if spoke else await self._reason(code)
            wait = patience.judge(spoke, code, text, why)
            self._note(
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
        """Serve one connection: whether the coordinator spoke, how it ended, and why."""
        spoke = False
        loop = asyncio.get_running_loop()
        async with grpc.aio.secure_channel(
            self._address, self._credentials, options=self._options
        ) as channel:
            call = channel.stream_stream(PATH)()
            try:
                await call.write(codec.encode(self._hello()))
                while (frame := await call.read()) is not grpc.aio.EOF:
                    spoke = self.connected = True
                    reply = await loop.run_in_executor(None, self._handle, frame)
                    await call.write(reply)
                    if self._over():
                        await call.done_writing()
            except (grpc.RpcError, asyncio.InvalidStateError, grpc.aio.UsageError):
                pass
            finally:
                self.connected = False
            return spoke, await call.code(), await call.details() or "the line was closed"


class _Patience:
    """Decides whether to dial again, and when."""

    def __init__(self, address: str, give_up_s: float) -> None:
        self._address, self._give_up_s = address, give_up_s
        self._heard = time.monotonic()
        self._wait = FIRST_WAIT_S
        self._twice_since: float | None = None
        self._why, self._alike = "", 0

    def judge(self, spoke: bool, code: grpc.StatusCode, text: str, why: str | None) -> float:
        """Give the seconds to wait, or raise where dialling again would not help."""
        now = time.monotonic()
        if spoke:
            self._heard, self._wait = now, FIRST_WAIT_S
        twice = code == grpc.StatusCode.ALREADY_EXISTS
        self._twice_since = (self._twice_since or now) if twice else None
        if code in FINAL or (self._twice_since and now - self._twice_since > TWICE_S):
            raise PartyError(f"the coordinator at {self._address} refused: {text}")
        self._alike = self._alike + 1 if why is not None and why == self._why else 1
        self._why = why or ""
        if why is not None and self._alike >= TRIES:
            raise PartyError(f"no line to {self._address}: {why}")
        if now - self._heard > self._give_up_s:
            raise RunError(f"no coordinator at {self._address} for {self._give_up_s:.0f} s: {text}")
        wait, self._wait = self._wait, min(2 * self._wait, LONGEST_WAIT_S)
        return wait * random.uniform(0.8, 1.2)
