"""Processes of their own, and ports for them."""

import os
import random
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = os.pathsep.join(str(ROOT / each) for each in ("src", "lab", "serve"))
"""Import path of processes; '' with `scripts/version`, where they import the installed packages."""
if os.environ.get("XVFL_INSTALLED"):
    SOURCES = ""


def run_python(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run Python with all projects' sources on its path and a minimal environment."""
    return subprocess.run(
        [sys.executable, *arguments],
        env={"PYTHONPATH": SOURCES, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )


def free_port() -> int:
    """Find a free port outside the system's range of ephemeral ports.

    Each test process searches a range of its own, so that tests in parallel do not meet.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    start = 10_000 + 500 * (worker % 32)
    for offset in random.sample(range(500), 500):
        with suppress(OSError), socket.create_server(("127.0.0.1", start + offset)):
            return start + offset
    raise AssertionError(f"no free port in {start} to {start + 499}")
