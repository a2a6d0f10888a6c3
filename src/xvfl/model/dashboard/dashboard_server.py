"""Serve the dashboard of a folder of runs. Read-only."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from xvfl.errors import InputError, RunError
from xvfl.model.dashboard.assets import json_reply, static_routes
from xvfl.model.dashboard.run_reader import RunReader
from xvfl.system.event_log import LogFunction
from xvfl_serve.errors import ServeError
from xvfl_serve.http.access import Access
from xvfl_serve.http.callers import read_callers, watch_callers
from xvfl_serve.http.pages import serve_pages
from xvfl_serve.http.routes import PortRoute
from xvfl_serve.http.server_tls import server_tls


class DashboardServer:
    """Serves the runs of a folder over HTTP until closed.

    Parameters
    ----------
    folder
        A folder with run folders, or one run folder.
    host, port
        Where to listen; port 0 is any free port.
    allowed_hosts
        Further host names that browsers may use.
    tokens
        File of callers; without it, everybody who reaches the port sees the runs.
    log
        Receives events about callers, refused requests and certificates.
    certificate, key
        Certificate and private key (PEM) of https; without them, plain HTTP.
    """

    def __init__(
        self,
        folder: Path,
        host: str = "127.0.0.1",
        port: int = 0,
        allowed_hosts: Iterable[str] = (),
        tokens: Path | None = None,
        log: LogFunction = lambda event: None,
        certificate: Path | None = None,
        key: Path | None = None,
    ) -> None:
        if not folder.is_dir():
            raise InputError(f"{folder}: no such folder; give a run folder, or a folder of runs")
        self._reader = RunReader(folder)
        try:
            callers = watch_callers(tokens, lambda path: read_callers(path) if path else (), log)
            tls = server_tls(certificate, key, log=log) if certificate and key else None
        except ServeError as error:
            raise InputError(str(error)) from error
        access = Access(host, callers, frozenset(allowed_hosts))
        try:
            self.server = serve_pages("dashboard", access, port, self.routes(), log, tls)
        except (OSError, OverflowError) as error:
            raise RunError(
                f"{host}:{port}: cannot listen ({error}); choose another --port or --host"
            ) from error
        name = f"[{host}]" if ":" in host else host
        self.url = f"http{'s' if tls else ''}://{name}:{self.server.port}/"

    def close(self) -> None:
        """Stop serving."""
        self.server.close()

    def routes(self) -> list[PortRoute]:
        """Return the routes."""
        return [
            *static_routes("runs"),
            PortRoute("/api/runs", lambda request: json_reply(self._reader.runs()), "look"),
            PortRoute("/api/run", self._run, "look"),
            PortRoute("/api/panel", self._panel, "look"),
        ]

    def _run(self, request: Request) -> Response:
        return _found(self._reader.run(request.query_params.get("name", "")))

    def _panel(self, request: Request) -> Response:
        query = request.query_params
        return _found(self._reader.panel(query.get("name", ""), query.get("panel", "")))


def _found(data: dict[str, Any] | None) -> Response:
    if data is None:
        return json_reply({"error": "no such run, or no such part of it"}, 404)
    return json_reply(data)
