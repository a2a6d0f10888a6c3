"""An HTTP server with a bounded number of connections and of silent seconds."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MAX_CONNECTIONS = 32
"""Connections handled at the same time; further ones are closed."""
REQUEST_TIMEOUT_S = 2
"""Seconds that a client may be silent."""
ACCEPT_PAUSE_S = 0.5


@dataclass(frozen=True)
class Reply:
    """The reply to a GET request."""

    code: int
    content_type: str
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


Respond = Callable[[str, str], Reply]
"""Reply to the path of a GET request; the second argument is its `Host` header."""


class BoundedServer(ThreadingHTTPServer):
    """Replies to GET requests in a thread of its own until closed.

    Parameters
    ----------
    host, port
        Where to listen; port 0 is any free port.
    respond
        Called in the thread of each request.

    Raises
    ------
    OSError
        The address is in use, or not one of this machine.
    """

    daemon_threads = True

    def __init__(self, host: str, port: int, respond: Respond) -> None:
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)

        class Handler(BaseHTTPRequestHandler):
            timeout = REQUEST_TIMEOUT_S

            def do_GET(self) -> None:
                reply = respond(self.path, self.headers.get("Host", ""))
                self.send_response(reply.code)
                self.send_header("Content-Type", reply.content_type)
                self.send_header("Content-Length", str(len(reply.body)))
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(reply.body)

            def log_message(self, format: str, *args: object) -> None:
                """Do not log requests."""

        super().__init__((host, port), Handler)
        threading.Thread(target=self.serve_forever, name="status", daemon=True).start()

    def close(self) -> None:
        """Stop serving."""
        self.shutdown()
        self.server_close()

    def get_request(self) -> Any:
        """Accept a connection; pause if no file descriptor is free."""
        try:
            return super().get_request()
        except OSError:
            # The connection stays in the queue, and is tried again at once.
            time.sleep(ACCEPT_PAUSE_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a connection, or close it if there are too many."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Handle a connection in its thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that disconnects."""
