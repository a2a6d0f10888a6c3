"""Processes of their own, and ports for them."""

import os
import random
import socket
import subprocess
import sys
from collections import deque
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = os.pathsep.join(str(ROOT / each) for each in ("src", "lab", "serve"))
"""Import path of processes; '' with `scripts/version`, where they import the installed packages."""
if os.environ.get("XVFL_INSTALLED"):
    SOURCES = ""
ENVIRONMENT = {"PYTHONPATH": SOURCES, "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
"""Variables of processes."""


def until_finished(*arguments: str) -> tuple[str, ...]:
    """Return the arguments of `xvfl` with which a party, too, exits after the run."""
    trains = arguments[:1] == ("party",) and "--serve" not in arguments
    return (*arguments, "--once") if trains else arguments


def run_python(*arguments: str, folder: Path | None = None) -> "subprocess.CompletedProcess[str]":
    """Run Python with all projects' sources on its path and a minimal environment."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )


def run_process(folder: Path, *arguments: str) -> None:
    """Run `xvfl` as a process in a folder, until its successful end."""
    done = run_python("-m", "xvfl", *until_finished(*arguments), folder=folder)
    assert done.returncode == 0, done.stderr


RECENT_PORTS: deque[int] = deque(maxlen=100)
"""Ports that `free_port` returned; whoever asked for them may not listen yet."""


def free_port() -> int:
    """Find a free port outside the system's range of ephemeral ports, another one each time.

    Each test process searches a range of its own, so that tests in parallel do not meet.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    start = 10_000 + 500 * (worker % 32)
    ports = set(range(start, start + 500)) - set(RECENT_PORTS)
    for port in random.sample(sorted(ports), len(ports)):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            RECENT_PORTS.append(port)
            return port
    raise AssertionError(f"no free port in {start} to {start + 499}")
