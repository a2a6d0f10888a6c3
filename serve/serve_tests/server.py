"""A server as a process of its own, and a small HTTP client."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.processes import ROOT, SOURCES, free_port

NO_TORCH = (
    "import sys; sys.modules.update(dict.fromkeys(['torch', 'pandas', 'xvfl', 'sklearn', 'onnx']));"
    "from xvfl_serve.command import main; main()"
)
"""Runs the server where importing torch, pandas or the product raises."""


@dataclass(frozen=True)
class Answer:
    """An HTTP answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """Return the parsed body."""
        return json.loads(self.body)


class Connection:
    """A kept-alive connection to a server on this machine."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._file = self._socket.makefile("rb")

    def send(self, data: bytes) -> Answer:
        """Send a complete request and read the answer."""
        self._socket.sendall(data)
        status = int(self._file.readline().split()[1])
        headers = {}
        while line := self._file.readline().strip():
            name, _, value = line.decode().partition(":")
            headers[name.lower()] = value.strip()
        body = self._file.read(int(headers.get("content-length", 0)))
        return Answer(status, headers, body)

    def close(self) -> None:
        """Close the connection."""
        self._file.close()
        self._socket.close()


def request_bytes(
    method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> bytes:
    """Write a request; a body is JSON unless the headers have another type."""
    given = {"Host": "localhost", "Content-Length": str(len(body))}
    given |= {"Content-Type": "application/json"} if body else {}
    given |= headers or {}
    lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + body


@dataclass(frozen=True)
class Server:
    """A running server."""

    port: int
    process: "subprocess.Popen[str]"

    def ask(
        self,
        method: str,
        path: str,
        body: Any = b"",
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send one request; a body that is not bytes is sent as JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection = Connection(self.port)
        try:
            return connection.send(request_bytes(method, path, data, headers))
        finally:
            connection.close()

    def predict(self, *rows: Any, **fields: Any) -> Answer:
        """Send rows to /predict."""
        return self.ask("POST", "/predict", {"rows": list(rows), **fields})


@contextmanager
def serving(bundle: Path, *options: str, **environment: str) -> Iterator[Server]:
    """Serve a bundle in a process that cannot import torch, until the block ends."""
    port = free_port()
    command = [sys.executable, "-c", NO_TORCH, str(bundle), "--port", str(port), *options]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": SOURCES, **environment},
        cwd=ROOT,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("serving"), process.communicate()
        yield Server(port, process)
    finally:
        process.terminate()
        process.communicate(timeout=60)


def wait_until(condition: Any, seconds: float = 60.0) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
