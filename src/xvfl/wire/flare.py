"""NVIDIA FLARE as the line to a party: one published call, a frame in, a frame out.

Provisioning, jobs, audit and TLS are FLARE's. A site is called by itself, never as one of a group:
a group call leaves out sites that failed without a word. Frames are bytes, so every tensor travels
inside its message; FLARE fetches arrays by reference, at five times the time, only where it sees
arrays. Needs the extra `xvfl[flare]`.
"""

import importlib
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from nvflare.collab import CollabCallError, collab
from nvflare.collab.api.exceptions import RunAborted

from xvfl.errors import ConfigError, PartyError, RunError, WireError
from xvfl.wire import codec
from xvfl.wire.messages import Hello, Message
from xvfl.wire.transport import Transport

CALL_S, AGAIN_S = 20.0, 0.5
"""Seconds to wait for one call, and between a call that failed and the next."""
SERVER = "server"
"""FLARE's name of the side that asks."""


class FlareTransport:
    """One site's line; a `Transport`. A call that fails is made again: its answer is the same."""

    def __init__(self, site: Any, call_s: float = CALL_S) -> None:
        """Reach a site through FLARE's proxy of it."""
        self._site, self._call_s = site, call_s
        self._pool = ThreadPoolExecutor(4, f"flare-{site.name}")
        self._asked = 0
        self._open: Future[Message] | None = None
        self._sent = self._received = 0
        hello = codec.decode(self._site(timeout=call_s).greet())
        if not isinstance(hello, Hello):
            raise WireError(f"{site.name}: expected Hello, got {type(hello).__name__}")
        self._hello = hello

    def hello(self) -> Hello | None:
        """Give what the party said of itself, while it is free to answer."""
        return self._hello if self._open is None or self._open.done() else None

    def exchange(self, message: Message) -> Future[Message]:
        """Ask; asking the next gives up the last."""
        answer: Future[Message] = Future()
        self._asked += 1
        self._open = answer
        self._pool.submit(self._ask, codec.encode(message), self._asked, answer)
        return answer

    def traffic(self) -> tuple[int, int]:
        """Bytes sent and received so far, without FLARE's own."""
        return self._sent, self._received

    def close(self) -> None:
        """Hang up."""
        self._asked += 1
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _ask(self, frame: bytes, number: int, answer: Future[Message]) -> None:
        while number == self._asked:
            try:
                self._sent += len(frame)
                reply = self._site(timeout=self._call_s).answer(frame)
                self._received += len(reply)
                answer.set_result(codec.decode(reply))
                return
            except CollabCallError as error:
                # What was raised at the site comes with its traceback; the rest is the line's.
                if error.remote_traceback is not None:
                    answer.set_exception(PartyError(str(error), (self._site.name,)))
                    return
                time.sleep(AGAIN_S)
            except WireError as error:
                answer.set_exception(PartyError(str(error), (self._site.name,)))
                return
            except RunAborted:
                answer.set_exception(RunError("the FLARE job was aborted"))
                return


class FlareParty:
    """What a job runs at a site: a party's endpoint, for the server alone."""

    def __init__(self, build: str = "xvfl.service.flare_job:endpoint") -> None:
        """Name the function, "module:function", that makes the endpoint of a site.

        It is given the site's name and the job's properties for this site; by default it reads the
        party's configuration that the property `config` names.
        """
        self.build = build
        self._endpoint: Any = None

    @collab.init
    def start(self) -> None:
        """Make the endpoint when the job starts."""
        self._endpoint = import_function(self.build)(
            collab.site_name, collab.context.app.get_props()
        )

    @collab.publish
    def greet(self) -> bytes:
        """Say what this party is."""
        _server_alone()
        return codec.encode(self._endpoint.hello)

    @collab.publish
    def answer(self, frame: bytes) -> bytes:
        """Answer a frame with a frame."""
        _server_alone()
        reply: bytes = self._endpoint.handle(frame)
        return reply


class FlareCoordinator:
    """What a job runs at the server: a run over the sites' lines."""

    def __init__(self, run: str = "xvfl.service.flare_job:run") -> None:
        """Name the function, "module:function", that runs.

        It is given the lines by site and the job's properties for the server; by default it reads
        the coordinator's configuration that the property `config` names.
        """
        self.run = run

    @collab.main
    def start(self) -> None:
        """Open a line to every site, run, hang up."""
        lines: dict[str, Transport] = {site.name: FlareTransport(site) for site in collab.clients}
        run: Callable[[Mapping[str, Transport], Mapping[str, Any]], None] = import_function(
            self.run
        )
        try:
            run(lines, collab.context.app.get_props())
        finally:
            for line in lines.values():
                line.close()


def import_function(path: str) -> Callable[..., Any]:
    """Find a function by its name, "module:function"."""
    module, _, name = path.partition(":")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{path!r}: expected module:function ({error})") from error
    return found


def _server_alone() -> None:
    if collab.caller != SERVER:
        raise WireError(f"expected a call of the server, got one of {collab.caller!r}")
