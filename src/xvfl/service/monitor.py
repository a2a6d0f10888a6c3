"""Health and metrics over HTTP: /health, /metrics (Prometheus text), /status (JSON). No secrets."""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from xvfl.errors import ConfigError, RunError

Status = Callable[[], dict[str, Any]]
"""Says where a side stands: `healthy`, and numbers, some of them by party."""


def prometheus(status: dict[str, Any]) -> str:
    """Write the numbers of a status as Prometheus text."""
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

    def __init__(self, address: str, status: Status) -> None:
        """Listen on HOST:PORT."""
        host, colon, port = address.rpartition(":")
        if not colon or not port.isdigit():
            raise ConfigError(f"health: expected HOST:PORT, got {address!r}")

        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                code, kind, text = _answer(self.path, status())
                self.send_response(code)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, format: str, *args: object) -> None:
                """Keep quiet: a look at the metrics is no event."""

        try:
            self._server = ThreadingHTTPServer((host, int(port)), Answer)
        except OSError as error:
            raise RunError(f"health: cannot listen on {address} ({error.strerror})") from error
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, name="monitor", daemon=True).start()

    def close(self) -> None:
        """Stop."""
        self._server.shutdown()
        self._server.server_close()


def _answer(path: str, status: dict[str, Any]) -> tuple[int, str, bytes]:
    if path == "/health":
        healthy = bool(status.get("healthy", True))
        return (200 if healthy else 503), "text/plain", b"ok\n" if healthy else b"not well\n"
    if path == "/metrics":
        return 200, "text/plain; version=0.0.4", prometheus(status).encode()
    if path == "/status":
        return 200, "application/json", (json.dumps(status, default=str) + "\n").encode()
    return 404, "text/plain", b"expected /health, /metrics or /status\n"
