"""Folders that one test process makes for all."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def make_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Make a folder, once for all test processes of a run; copy it before you change it."""
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    done = base / f"{name}.done"
    with (base / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            folder = factory.mktemp(name)
            make(folder)
            done.write_text(str(folder))
        return Path(done.read_text())
