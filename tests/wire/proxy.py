"""A TCP proxy on loopback that can drop its connections."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Proxy:
    """Forwards bytes to a port; with `refuse`, new connections are closed."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listening = socket.create_server(("localhost", 0))
        self.port: int = self._listening.getsockname()[1]
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self.refuse = False
        threading.Thread(target=self._accept, daemon=True).start()

    def drop_connections(self) -> int:
        """Close every connection; return how many there were."""
        with self._lock:
            connections, self._open = self._open, []
        for each in connections:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        return len(connections) // 2

    def close(self) -> None:
        """Stop listening and close every connection."""
        self._listening.close()
        self.drop_connections()

    def _accept(self) -> None:
        while True:
            try:
                inner, _ = self._listening.accept()
            except OSError:
                return
            if self.refuse:
                inner.close()
                continue
            try:
                outer = socket.create_connection(("localhost", self._target))
            except OSError:
                inner.close()
                continue
            with self._lock:
                self._open += [inner, outer]
            for a, b in ((inner, outer), (outer, inner)):
                threading.Thread(target=_pass_on, args=(a, b), daemon=True).start()


def _pass_on(a: socket.socket, b: socket.socket) -> None:
    with suppress(OSError):
        while data := a.recv(65536):
            b.sendall(data)
    for each in (a, b):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


@contextmanager
def proxy(port: int) -> Iterator[Proxy]:
    """Run a proxy in front of a port."""
    started = Proxy(port)
    try:
        yield started
    finally:
        started.close()
