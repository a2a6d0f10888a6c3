"""A process of `xvfl serve` under attack: what it answers, and the memory it takes."""

import http.client
import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.processes import SOURCES, free_port

MAX_PEAK = 600 * 10**6
"""Bytes that a server may take, whatever is sent to it."""
ADDRESS_SPACE = 4 * 2**30
"""Limit of the process, so that a server that fails does not take the machine with it."""


@dataclass(frozen=True)
class ServeProcess:
    """A running server."""

    port: int
    process: "subprocess.Popen[str]"

    def send(
        self, path: str, body: bytes, kind: str = "application/json", method: str = "POST"
    ) -> tuple[int, bytes]:
        """Send a request; return status and body of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request(method, path, body, {"Content-Type": kind})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def predict(self, **cells: Any) -> tuple[int, Any]:
        """Predict a row; return status and parsed answer."""
        status, body = self.send("/predict", json.dumps({"rows": [cells]}).encode())
        return status, json.loads(body)

    def metrics(self) -> str:
        """Return the counters."""
        return self.send("/metrics", b"", method="GET")[1].decode()

    @property
    def peak(self) -> int:
        """Largest memory of the process so far."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return 1024 * next(int(each.split()[1]) for each in lines if each.startswith("VmHWM"))

    @contextmanager
    def answering_others(self) -> Iterator[list[int]]:
        """Send small requests from a second client while the block runs; yield their statuses."""
        statuses: list[int] = []
        done = threading.Event()

        def ask() -> None:
            while not done.is_set():
                try:
                    statuses.append(self.predict(age=40)[0])
                except (OSError, http.client.HTTPException):
                    statuses.append(0)
                    return

        thread = threading.Thread(target=ask)
        thread.start()
        try:
            yield statuses
        finally:
            done.set()
            thread.join()


@contextmanager
def attacked(bundle: Path, *options: str, cwd: Path | None = None) -> Iterator[ServeProcess]:
    """Serve a bundle until the block ends."""
    with started(bundle, *options, cwd=cwd) as server:
        assert server.process.stdout is not None
        line = server.process.stdout.readline()
        assert line.startswith("serving"), line
        yield server


@contextmanager
def started(bundle: Path, *options: str, cwd: Path | None = None) -> Iterator[ServeProcess]:
    """Start a server that may reject its bundle."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "xvfl_serve.command", str(bundle), "--port", str(port), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL if cwd is None else subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": SOURCES},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE)),
        cwd=cwd or bundle.parent,
    )
    try:
        yield ServeProcess(port, process)
    finally:
        process.kill()
        process.communicate(timeout=60)


def replace(path: Path, contents: "bytes | Mapping[str, Any]") -> None:
    """Replace a file as an operator does; a mapping is written as JSON."""
    data = contents if isinstance(contents, bytes) else json.dumps(dict(contents)).encode()
    new = path.with_suffix(".new")
    new.write_bytes(data)
    os.replace(new, path)


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "the condition does not hold after 60 s"
        time.sleep(0.1)
