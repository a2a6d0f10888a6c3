"""Status over HTTP: /health, /metrics (Prometheus text) and /status (JSON). Contains no secrets."""

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from xvfl.errors import ConfigError, RunError

MAX_CONNECTIONS = 32
"""Connections handled at the same time; further ones are closed."""
REQUEST_TIMEOUT_S = 2
"""Seconds that a client may be silent."""
ACCEPT_PAUSE_S = 0.5
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
            timeout = REQUEST_TIMEOUT_S

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
            self._server = _Server((host, int(port)), Handler)
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


class _Server(ThreadingHTTPServer):
    """Handles a few connections at a time and closes the others."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__(address, handler)

    def get_request(self) -> Any:
        try:
            return super().get_request()
        except OSError:
            # No descriptor is free; the connection stays in the queue, and is tried again at once.
            time.sleep(ACCEPT_PAUSE_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that disconnects."""


def _respond(path: str, status: dict[str, Any]) -> tuple[int, str, bytes]:
    if path == "/health":
        healthy = bool(status["healthy"])
        text = "ok" if healthy else f"unhealthy: {status['problem']}"
        return (200 if healthy else 503), "text/plain", f"{text}\n".encode()
    if path == "/metrics":
        return 200, "text/plain; version=0.0.4", prometheus(status).encode()
    if path == "/status":
        return 200, "application/json", (json.dumps(status, default=str) + "\n").encode()
    return 404, "text/plain", b"expected /health, /metrics or /status\n"
