"""Atomic file writes, files of JSON lines, and files that only their owner can use."""

import json
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

OTHERS = stat.S_IRWXG | stat.S_IRWXO
"""Permissions of all users but the owner."""


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path; move it to `path` when the block ends, or remove it on an error.

    The file is flushed to the disk before the move, so a crash or a full disk leaves the old file.
    An `OSError` is the caller's to report.
    """
    temporary = temporary_path(path)
    try:
        yield temporary
        flush_to_disk(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def temporary_path(path: Path) -> Path:
    """Name a temporary file beside `path`, unique to this process."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def flush_to_disk(path: Path) -> None:
    """Wait until the operating system has written a file to the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Read a file of JSON objects, one a line; skip lines that a crash cut short.

    A file that does not exist has no lines.
    """
    if not path.is_file():
        return []
    records = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            records.append(record)
    return records


def json_line(record: Mapping[str, Any]) -> str:
    """Write a JSON object as one line."""
    return json.dumps(record, default=str)


def append_jsonl(path: Path, record: Mapping[str, Any]) -> None:
    """Append one JSON object as a line; start a new line where a crash cut the last one short."""
    line = json_line(record) + "\n"
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                line = "\n" + line
        file.write(line.encode())


def set_private_umask() -> None:
    """Let only the owner use files and folders that this process creates from now on."""
    os.umask(OTHERS)


def make_private(paths: Iterable[Path], keep: Collection[str] = ()) -> tuple[int, int]:
    """Let only the owner use files, and folders with all that is in them.

    Links in folders, and files named in `keep`, are skipped.

    Returns
    -------
    tuple of int
        How many files and folders were changed, and how many could not be.
    """
    changed = failed = 0
    given = list(paths)
    inside = [
        Path(at) / each
        for path in given
        for at, folders, files in os.walk(path)
        for each in folders + files
    ]
    for path in (*given, *(each for each in inside if not each.is_symlink())):
        if path.name in keep:
            continue
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
            if mode & OTHERS:
                path.chmod(mode & ~OTHERS)
                changed += 1
        except FileNotFoundError:
            # Another process has removed or replaced it.
            continue
        except OSError:
            failed += 1
    return changed, failed


def is_open_to_others(path: Path) -> bool:
    """Return whether a file exists and other users than its owner may read or change it."""
    try:
        return bool(stat.S_IMODE(path.stat().st_mode) & OTHERS)
    except OSError:
        return False
