"""Serve the dashboard of a folder of runs. Read-only."""

from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from xvfl.errors import InputError, RunError
from xvfl.model.dashboard.assets import json_reply, static_reply
from xvfl.model.dashboard.run_reader import RunReader
from xvfl.system.bounded_server import BoundedServer, Reply

LOOPBACK = ("127.0.0.1", "localhost", "::1")


class DashboardServer:
    """Serves the runs of a folder over HTTP until closed.

    Parameters
    ----------
    folder
        A folder with run folders, or one run folder.
    host, port
        Where to listen; port 0 is any free port.
    """

    def __init__(self, folder: Path, host: str = "127.0.0.1", port: int = 0) -> None:
        if not folder.is_dir():
            raise InputError(f"{folder}: no such folder; give a run folder, or a folder of runs")
        self._reader, self._host = RunReader(folder), host
        try:
            self._server = BoundedServer(host, port, self._respond)
        except OSError as error:
            raise RunError(
                f"{host}:{port}: cannot listen ({error.strerror}); choose another --port or --host"
            ) from error
        self.url = f"http://{host}:{self._server.server_port}/"

    def close(self) -> None:
        """Stop serving."""
        self._server.close()

    def _respond(self, path: str, host: str) -> Reply:
        if not self._is_own_host(host):
            return Reply(421, "text/plain", b"expected a request to this address\n")
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
            return Reply(404, "text/plain", b"expected /\n")
        if data is None:
            return json_reply({"error": "no such run, or no such part of it"}, 404)
        return json_reply(data)

    def _is_own_host(self, host: str) -> bool:
        """Return whether a request to a loopback address names it.

        A web page elsewhere could resolve its own name to this address and read the runs.
        """
        name = host.rpartition(":")[0] if not host.endswith("]") else host
        return self._host not in LOOPBACK or (name or host).strip("[]") in LOOPBACK
