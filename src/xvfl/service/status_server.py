"""Status over HTTP: /health, /metrics (Prometheus text), /status (JSON), and a page that shows it.

Contains no secrets.
"""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

from starlette.responses import PlainTextResponse, Response

from xvfl.errors import RunError
from xvfl.model.dashboard.assets import json_reply, static_reply
from xvfl.model.dashboard.status_metrics import status_metrics
from xvfl.service.addresses import parse_address
from xvfl.service.config import CoordinatorConfig, PartyProcessConfig
from xvfl.system.event_log import EventLog
from xvfl_serve.http.metrics import CONTENT_TYPE, to_text
from xvfl_serve.http.pages import serve_pages
from xvfl_serve.http.server import HttpServer

StatusFunction = Callable[[], dict[str, Any]]
"""Return the status of a process: `healthy`, `problem`, and values, some of them by party."""


def open_status_server(
    address: str, status: StatusFunction, allowed_hosts: Iterable[str] = ()
) -> HttpServer:
    """Serve a status and a page that shows it on HOST:PORT, until the server is closed.

    `allowed_hosts` are further names of this host.
    """
    host, port = parse_address(address, "status_address")
    try:
        return serve_pages("status", host, port, lambda path: _respond(path, status), allowed_hosts)
    except (OSError, OverflowError) as error:
        raise RunError(f"status_address: cannot listen on {address} ({error})") from error


def serve_status(
    config: CoordinatorConfig | PartyProcessConfig,
    status: StatusFunction,
    log: EventLog,
    stack: ExitStack,
) -> None:
    """Serve the status of a process until the stack is closed, if its configuration says so."""
    if config.status_address is not None:
        # What the log cannot write makes a process unhealthy, whatever else its status says.
        server = open_status_server(
            config.status_address, lambda: {**status(), **log.status()}, config.status_allowed_hosts
        )
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
        return Response(to_text(status_metrics(status)), media_type=CONTENT_TYPE)
    if path == "/status":
        return json_reply(status)
    return PlainTextResponse("expected /, /health, /metrics or /status\n", 404)
