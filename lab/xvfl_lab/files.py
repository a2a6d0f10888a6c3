"""Files of results: damage, and writing."""

import json
import os
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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


def append_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Append records as lines of JSON in one write, so that several processes may share a file."""
    text = "".join(json.dumps(each) + "\n" for each in records)
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o644)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)
