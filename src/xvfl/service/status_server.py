"""Status over HTTP: /health, /metrics (Prometheus text) and /status (JSON). Contains no secrets."""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from xvfl.errors import ConfigError, RunError

StatusFunction = Callable[[], dict[str, Any]]
"""Return the status of a process: `healthy`, and values, some of them by party."""


def prometheus(status: dict[str, Any]) -> str:
    """Format the numbers of a status as Prometheus text."""
    lines = []
    for name, value in status.items():
        metric = f"xvfl_{name}"
        if isinstance(value, dict):
            numbers = {k: v for k, v in value.items() if isinstance(v, (int, float))}
            lines += [f'{metric}{{party="{k}"}} {float(v):g}' for k, v in numbers.items()]
        elif isinstance(value, (int, float)):
            lines.append(f"{metric} {float(value):.17g}")
    return "\n".join(lines) + "\n"


class StatusServer:
    """Serves a status until closed."""

    def __init__(self, address: str, status: StatusFunction) -> None:
        """Listen on HOST:PORT."""
        host, colon, port = address.rpartition(":")
        if not colon or not port.isdigit():
            raise ConfigError(f"status_address: expected HOST:PORT, got {address!r}")

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                code, content_type, body = _respond(self.path, status())
                self.send_response(code)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Do not log requests."""

        try:
            self._server = ThreadingHTTPServer((host, int(port)), Handler)
        except OSError as error:
            raise RunError(
                f"status_address: cannot listen on {address} ({error.strerror})"
            ) from error
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, name="status", daemon=True).start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()


def _respond(path: str, status: dict[str, Any]) -> tuple[int, str, bytes]:
    if path == "/health":
        healthy = bool(status.get("healthy", True))
        return (200 if healthy else 503), "text/plain", b"ok\n" if healthy else b"unhealthy\n"
    if path == "/metrics":
        return 200, "text/plain; version=0.0.4", prometheus(status).encode()
    if path == "/status":
        return 200, "application/json", (json.dumps(status, default=str) + "\n").encode()
    return 404, "text/plain", b"expected /health, /metrics or /status\n"
