"""Serve the dashboard of a folder of runs. Read-only."""

from collections.abc import Iterable
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from starlette.responses import PlainTextResponse, Response

from xvfl.errors import InputError, RunError
from xvfl.model.dashboard.assets import json_reply, static_reply
from xvfl.model.dashboard.run_reader import RunReader
from xvfl_serve.http.pages import serve_pages


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
    """

    def __init__(
        self,
        folder: Path,
        host: str = "127.0.0.1",
        port: int = 0,
        allowed_hosts: Iterable[str] = (),
    ) -> None:
        if not folder.is_dir():
            raise InputError(f"{folder}: no such folder; give a run folder, or a folder of runs")
        self._reader = RunReader(folder)
        try:
            self._server = serve_pages("dashboard", host, port, self._respond, allowed_hosts)
        except (OSError, OverflowError) as error:
            raise RunError(
                f"{host}:{port}: cannot listen ({error}); choose another --port or --host"
            ) from error
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self._server.port}/"

    def close(self) -> None:
        """Stop serving."""
        self._server.close()

    def _respond(self, path: str) -> Response:
        if (page := static_reply(path, "runs")) is not None:
            return page
        parts = urlsplit(path)
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        if parts.path == "/api/runs":
            return json_reply(self._reader.runs())
        if parts.path == "/api/run":
            data = self._reader.run(query.get("name", ""))
        elif parts.path == "/api/panel":
            data = self._reader.panel(query.get("name", ""), query.get("panel", ""))
        else:
            return PlainTextResponse("expected /\n", 404)
        if data is None:
            return json_reply({"error": "no such run, or no such part of it"}, 404)
        return json_reply(data)
