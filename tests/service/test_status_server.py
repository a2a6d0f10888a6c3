"""The status server with clients that say nothing."""

import socket
import threading
import urllib.error
import urllib.request

from xvfl.service.status_server import open_status_server


def test_silent_clients_take_few_threads_and_are_closed() -> None:
    server = open_status_server("127.0.0.1:0", lambda: {"healthy": True})
    before = threading.active_count()
    silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(200)]

    def healthy() -> bool:
        try:
            url = f"http://127.0.0.1:{server.port}/health"
            with urllib.request.urlopen(url, timeout=60) as reply:
                return bool(reply.read() == b"ok\n")
        except (urllib.error.URLError, ConnectionError, OSError):
            return False

    try:
        assert healthy() and threading.active_count() <= before + 2
    finally:
        for each in silent:
            each.close()
        server.close()
