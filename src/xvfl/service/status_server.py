"""Status over HTTP: /health, /live, /metrics (Prometheus text), /status (JSON), and a page.

Contains no secrets.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from xvfl.errors import RunError
from xvfl.model.dashboard.assets import json_reply, static_routes
from xvfl.model.dashboard.status_metrics import status_metrics
from xvfl.service.addresses import parse_address
from xvfl.service.config import CoordinatorConfig, PartyProcessConfig
from xvfl.service.operator_routes import operator_routes
from xvfl.service.port_access import port_access, port_tls
from xvfl.system.event_log import EventLog, LogFunction
from xvfl_serve.http.access import Access, may
from xvfl_serve.http.metrics import CONTENT_TYPE, to_text
from xvfl_serve.http.pages import serve_pages
from xvfl_serve.http.routes import PortRoute
from xvfl_serve.http.server import HttpServer
from xvfl_serve.http.server_tls import ServerTls

StatusFunction = Callable[[], dict[str, Any]]
"""Return the status of a process: `healthy`, `problem`, and values, some of them by party."""


def open_status_server(
    address: str,
    status: StatusFunction,
    access: Access | None = None,
    log: LogFunction = lambda event: None,
    more: Sequence[PortRoute] = (),
    tls: ServerTls | None = None,
) -> HttpServer:
    """Serve a status, a page that shows it and more routes on HOST:PORT, until it is closed.

    Without `access`, everybody who reaches the address may look.
    """
    host, port = parse_address(address, "status_address")
    try:
        routes = [*status_routes(status), *more]
        return serve_pages("status", access or Access(host), port, routes, log, tls)
    except (OSError, OverflowError) as error:
        raise RunError(f"status_address: cannot listen on {address} ({error})") from error


def serve_status(
    config: CoordinatorConfig | PartyProcessConfig,
    status: StatusFunction,
    log: EventLog,
    stack: ExitStack,
) -> HttpServer | None:
    """Serve the status of a process until the stack is closed, if its configuration says so."""
    address, hosts = config.status_address, config.status_allowed_hosts
    server = None
    if address is not None:
        access = port_access(address, "status_address", config.status_tokens, log, hosts)
        certificate, key = config.status_certificate, config.status_private_key
        tls = port_tls(certificate, key, "status_certificate", log)
        # What the log cannot write makes a process unhealthy, whatever else its status says.
        server = open_status_server(
            address,
            lambda: {**status(), **log.status()},
            access,
            log,
            operator_routes(config, log),
            tls,
        )
        stack.callback(server.close)
        log({"event": "status_server", "port": server.port})
    return server


def status_routes(get_status: StatusFunction) -> list[PortRoute]:
    """Return the routes of a status; everybody may request /health and /live."""

    def health(request: Request) -> Response:
        status = get_status()
        if status["healthy"]:
            return PlainTextResponse("ok\n")
        # The reason is for those who may look.
        why = f": {status['problem']}" if may(request, "look") else ""
        return PlainTextResponse(f"unhealthy{why}\n", 503)

    def metrics(request: Request) -> Response:
        return Response(to_text(status_metrics(get_status())), media_type=CONTENT_TYPE)

    return [
        *static_routes("status"),
        PortRoute("/health", health, None),
        PortRoute("/live", lambda request: PlainTextResponse("ok\n"), None),
        PortRoute("/metrics", metrics, "look"),
        PortRoute("/status", lambda request: json_reply(get_status()), "look"),
    ]
