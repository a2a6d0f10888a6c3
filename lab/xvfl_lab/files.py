"""Files of results: damage, and writing."""

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from xvfl.errors import RunError
from xvfl.system.files import atomic_write

DAMAGED = (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error)
"""What reading an .npz or .zip file raises if it is missing, truncated or damaged."""


@contextmanager
def write_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path that becomes the file; create its folder, and name it in errors."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as temporary:
            yield temporary
    except OSError as error:
        raise RunError(f"{path}: could not be written ({error.strerror or error})") from error


def write_text(path: Path, text: str) -> None:
    """Write a text file."""
    with write_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
