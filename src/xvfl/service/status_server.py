"""Status over HTTP: /health, /metrics (Prometheus text), /status (JSON), and a page that shows it.

Contains no secrets.
"""

import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

from starlette.responses import PlainTextResponse, Response

from xvfl.errors import RunError
from xvfl.model.dashboard.assets import json_reply, static_reply
from xvfl.service.addresses import parse_address
from xvfl.service.config import CoordinatorConfig, PartyProcessConfig
from xvfl.service.log import LogFunction
from xvfl.system.printable import one_line
from xvfl_serve.http.access import Access, AccessMiddleware
from xvfl_serve.http.connections import port_limits
from xvfl_serve.http.pages import pages
from xvfl_serve.http.server import HttpServer, listen

MAX_CONNECTIONS = 64
CONTENT_TYPE = "text/plain; version=0.0.4"

MAX_LABEL = 100
"""Characters of a label's value."""
StatusFunction = Callable[[], dict[str, Any]]
"""Return the status of a process: `healthy`, `problem`, and values, some of them by party."""


class ProgressClock:
    """Measures for how long a value has not changed, from one look at it to the next."""

    def __init__(self) -> None:
        """Start without a value."""
        self._value: object = None
        self._since = time.monotonic()

    def seconds_since_change(self, value: object) -> float:
        """Return the seconds since a look first showed this value."""
        now = time.monotonic()
        if value != self._value:
            self._value, self._since = value, now
        return now - self._since


def prometheus(status: dict[str, Any]) -> str:
    """Format the numbers of a status as Prometheus text."""
    lines = []
    for name, value in status.items():
        metric = f"xvfl_{name}"
        if isinstance(value, dict):
            label = "caller" if name.endswith("_by_caller") else "party"
            numbers = {k: v for k, v in value.items() if isinstance(v, (int, float))}
            lines += [f'{metric}{{{label}="{_label(k)}"}} {float(v):g}' for k, v in numbers.items()]
        elif isinstance(value, (int, float)):
            lines.append(f"{metric} {float(value):.17g}")
    return "\n".join(lines) + "\n"


def _label(value: object) -> str:
    """Escape the value of a label."""
    return one_line(str(value), MAX_LABEL).replace("\\", "\\\\").replace('"', '\\"')


class StatusServer:
    """Serves a status, and a page that shows it, until closed."""

    def __init__(
        self, address: str, status: StatusFunction, allowed_hosts: Iterable[str] = ()
    ) -> None:
        """Listen on HOST:PORT; `allowed_hosts` are further names of this host."""
        host, port = parse_address(address, "status_address")
        try:
            listener = listen(host, port)
        except (OSError, OverflowError) as error:
            raise RunError(f"status_address: cannot listen on {address} ({error})") from error
        access = Access(host, allowed_hosts=frozenset(allowed_hosts))
        app = AccessMiddleware(pages(lambda path: _respond(path, status)), access)
        self._server = HttpServer(app, listener, port_limits(MAX_CONNECTIONS)).start("status")
        self.port = self._server.port

    def close(self) -> None:
        """Stop serving."""
        self._server.close()


def serve_status(
    config: CoordinatorConfig | PartyProcessConfig,
    status: StatusFunction,
    log: LogFunction,
    stack: ExitStack,
) -> None:
    """Serve the status of a process until the stack is closed, if its configuration says so."""
    if config.status_address is not None:
        server = StatusServer(config.status_address, status, config.status_allowed_hosts)
        stack.callback(server.close)
        log({"event": "status_server", "port": server.port})


def _respond(path: str, get_status: StatusFunction) -> Response:
    if (page := static_reply(path, "status")) is not None:
        return page
    status = get_status()
    if path == "/health":
        healthy = bool(status["healthy"])
        text = "ok" if healthy else f"unhealthy: {status['problem']}"
        return PlainTextResponse(f"{text}\n", 200 if healthy else 503)
    if path == "/metrics":
        return Response(prometheus(status), media_type=CONTENT_TYPE)
    if path == "/status":
        return json_reply(status)
    return PlainTextResponse("expected /, /health, /metrics or /status\n", 404)
