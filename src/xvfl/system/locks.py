"""Locks between the threads and processes that use a folder."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from xvfl.errors import RunError


@contextmanager
def file_lock(path: Path, busy: str = "") -> Iterator[None]:
    """Exclude other threads and processes that lock the same file.

    Wait for them; with a text `busy`, raise `RunError` instead.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (fcntl.LOCK_NB if busy else 0))
        except BlockingIOError as error:
            raise RunError(f"{path}: {busy}") from error
        yield
