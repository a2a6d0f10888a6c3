"""Locks between the threads and processes that use a folder."""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from xvfl.errors import RunError

TRIES, PAUSE_S = 3, 0.02
"""`is_locked` holds a lock for an instant, in which it is not busy."""


@contextmanager
def file_lock(path: Path, busy: str = "") -> Iterator[None]:
    """Exclude other threads and processes that lock the same file.

    Wait for them; with a text `busy`, raise `RunError` instead.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        for left in reversed(range(TRIES)):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (fcntl.LOCK_NB if busy else 0))
                break
            except BlockingIOError as error:
                if not left:
                    raise RunError(f"{path}: {busy}") from error
                time.sleep(PAUSE_S)
        yield


def is_locked(path: Path) -> bool:
    """Return whether a thread or process holds the lock of a file; the file is not created."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
