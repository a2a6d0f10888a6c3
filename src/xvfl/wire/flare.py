"""NVIDIA FLARE as transport: one published call that takes a frame and returns a frame.

FLARE provides provisioning, jobs, audit and TLS. Each site is called separately, because a group
call silently omits sites that failed. Frames are bytes, so tensors are part of the message; FLARE
transfers arrays by reference, which takes five times as long. Needs the extra `xvfl[flare]`.
"""

import importlib
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from nvflare.collab import CollabCallError, collab
from nvflare.collab.api.exceptions import RunAborted

from xvfl.errors import ConfigError, PartyError, RunError, WireError
from xvfl.wire import codec
from xvfl.wire.messages import Hello, Message

CALL_TIMEOUT_S, RETRY_S = 20.0, 0.5
"""Timeout of one call, and seconds between a failed call and the next."""
SERVER = "server"
"""FLARE's name of the server site."""


class FlareTransport:
    """The `Transport` to one site. A failed call is repeated; the site caches its reply."""

    def __init__(self, site: Any, call_s: float = CALL_TIMEOUT_S) -> None:
        """Take FLARE's proxy of the site."""
        self._site, self._call_s = site, call_s
        self._pool = ThreadPoolExecutor(4, f"flare-{site.name}")
        self._n_requests = 0
        self._open: Future[Message] | None = None
        self._sent = self._received = 0
        hello = codec.decode(self._site(timeout=call_s).greet())
        if not isinstance(hello, Hello):
            raise WireError(f"{site.name}: expected Hello, got {type(hello).__name__}")
        self._hello = hello

    def hello(self) -> Hello | None:
        """Return the party's `Hello` while it is idle, else None."""
        return self._hello if self._open is None or self._open.done() else None

    def request(self, message: Message) -> Future[Message]:
        """Send a request; the next request cancels it."""
        reply: Future[Message] = Future()
        self._n_requests += 1
        self._open = reply
        self._pool.submit(self._call, codec.encode(message), self._n_requests, reply)
        return reply

    def traffic(self) -> tuple[int, int]:
        """Bytes sent and received so far, without FLARE's overhead."""
        return self._sent, self._received

    def close(self) -> None:
        """Cancel the open request and stop the threads."""
        self._n_requests += 1
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _call(self, frame: bytes, number: int, reply: Future[Message]) -> None:
        while number == self._n_requests:
            try:
                self._sent += len(frame)
                answer = self._site(timeout=self._call_s).answer(frame)
                self._received += len(answer)
                reply.set_result(codec.decode(answer))
                return
            except CollabCallError as error:
                # An exception at the site has a traceback; others are errors of the connection.
                if error.remote_traceback is not None:
                    reply.set_exception(PartyError(str(error), (self._site.name,)))
                    return
                time.sleep(RETRY_S)
            except RunAborted:
                reply.set_exception(RunError("the FLARE job was aborted"))
                return
            except Exception as error:
                # Without a result, the reply would be waited for in vain.
                reply.set_exception(PartyError(repr(error), (self._site.name,)))
                return


class FlareParty:
    """The job at a site: a party's endpoint, callable by the server only."""

    def __init__(self, build: str = "xvfl.service.flare_job:endpoint") -> None:
        """Take the path "module:function" of the function that builds a site's endpoint.

        It is called with the site's name and the job's properties for the site. The default reads
        the party's configuration from the file in property `config`.
        """
        self.build = build
        self._endpoint: Any = None

    @collab.init
    def start(self) -> None:
        """Build the endpoint when the job starts."""
        self._endpoint = import_function(self.build)(
            collab.site_name, collab.context.app.get_props()
        )

    @collab.publish
    def greet(self) -> bytes:
        """Return the encoded `Hello`."""
        _require_server()
        return codec.encode(self._endpoint.hello)

    @collab.publish
    def answer(self, frame: bytes) -> bytes:
        """Handle an encoded request and return the encoded reply."""
        _require_server()
        reply: bytes = self._endpoint.handle(frame)
        return reply


class FlareCoordinator:
    """The job at the server: a run over transports to the sites."""

    def __init__(self, run: str = "xvfl.service.flare_job:run") -> None:
        """Take the path "module:function" of the function that runs training.

        It is called with the transports by site and the job's properties for the server. The
        default reads the coordinator's configuration from the file in property `config`.
        """
        self.run = run

    @collab.main
    def start(self) -> None:
        """Connect to every site, run, and disconnect."""
        transports = {site.name: FlareTransport(site) for site in collab.clients}
        run = import_function(self.run)
        try:
            run(transports, collab.context.app.get_props())
        finally:
            for transport in transports.values():
                transport.close()


def import_function(path: str) -> Callable[..., Any]:
    """Import a function by its path "module:function"."""
    module, _, name = path.partition(":")
    try:
        function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{path!r}: expected module:function ({error})") from error
    return function


def _require_server() -> None:
    if collab.caller != SERVER:
        raise WireError(f"expected a call from the server, got one from {collab.caller!r}")
