"""Attacks on a coordinator, each from outside its process."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from tests.processes import until_finished
from tests.small_tables import SOURCE
from tests.wire.transport_helpers import tls_files
from xvfl.wire import codec
from xvfl.wire.limits import split_frame
from xvfl.wire.messages import Match
from xvfl.wire.tls import PATH

STARTED: list["subprocess.Popen[str]"] = []
PER_PROCESS = 900
"""Sockets that one attacking process opens: stays below a common limit of 1024 descriptors."""
SILENT = """
import socket, sys
held = []
for _ in range(int(sys.argv[2])):
    one = socket.socket()
    one.settimeout(120)
    one.connect(("127.0.0.1", int(sys.argv[1])))
    held.append(one)
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def silent_sockets(port: int, count: int) -> Iterator[None]:
    """Hold many connections that send nothing."""
    parts = [min(PER_PROCESS, count - start) for start in range(0, count, PER_PROCESS)]
    attackers = [
        subprocess.Popen(
            [sys.executable, "-c", SILENT, str(port), str(part)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for part in parts
    ]
    try:
        for each in attackers:
            assert each.stdout is not None and each.stdout.readline() == "held\n"
        yield
    finally:
        for each in attackers:
            each.communicate()


def send_before_hello(certs: Path, name: str, port: int, streams: int, size: int) -> list[str]:
    """Send a large frame first, on several connections at once: half of them in chunks.

    Returns what the coordinator replies on each.
    """
    frame = codec.encode(Match(1, bytes(size)))
    replies: list[str] = []

    def attack(chunked: bool) -> None:
        options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        credentials = tls_files(certs, name).client_credentials()
        with grpc.secure_channel(f"localhost:{port}", credentials, options) as channel:
            frames = split_frame(frame) if chunked else iter([frame])
            try:
                next(channel.stream_stream(PATH)(frames))
            except grpc.RpcError as error:
                replies.append(str(error.details()))  # type: ignore[attr-defined]

    threads = [threading.Thread(target=attack, args=(i % 2 == 0,)) for i in range(streams)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return replies


def send_garbage(port: int, count: int) -> None:
    """Send bytes that are not TLS, on one connection after the other."""
    for _ in range(count):
        with socket.create_connection(("127.0.0.1", port), timeout=120) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
            try:
                plain.recv(100)
            except ConnectionError:
                continue


def start(
    folder: Path,
    *arguments: str,
    code: str = "",
    descriptors: int | None = None,
) -> Any:
    """Start a command; `code` runs it in another way than `python -m xvfl`.

    The shell sets the limit of descriptors. With `preexec_fn`, Python forks while gRPC's threads
    run in the test's process, and about one child in fifty ends before it runs the command
    (https://github.com/grpc/grpc/issues/43055).
    """
    limit = f"ulimit -n {descriptors} && " if descriptors is not None else ""
    prefix = ("sh", "-c", f'{limit}exec "$@"', "-")
    process = subprocess.Popen(
        [
            *prefix,
            sys.executable,
            *(("-c", code) if code else ("-m", "xvfl")),
            *until_finished(*arguments),
        ],
        cwd=folder,
        env={"PYTHONPATH": str(SOURCE), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    STARTED.append(process)
    return process


def memory(process: Any, field: str) -> float:
    """Return VmRSS (now) or VmHWM (largest so far) of a process in MB."""
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1000
    raise AssertionError(field)


def reset_peak(process: Any) -> None:
    """Set VmHWM to the current memory."""
    Path(f"/proc/{process.pid}/clear_refs").write_text("5")


def descriptors_in_use(process: Any) -> int:
    return len(os.listdir(f"/proc/{process.pid}/fd"))
