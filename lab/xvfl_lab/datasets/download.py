"""Download a file: resumable, with checksum, moved into place when complete."""

import hashlib
import os
import zipfile
import zlib
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from xvfl.errors import InputError
from xvfl.version import VERSION
from xvfl_lab.datasets.archive import nested
from xvfl_lab.datasets.source import Download, file_size

Show = Callable[[int, int | None], None]
"""Called with the bytes received so far and the total, if the server sends it."""

AT_ONCE = 1 << 18
PATIENCE = 60.0
"""Timeout in seconds without data."""
RANGE_NOT_SATISFIABLE = 416
PARTIAL_CONTENT = 206


def fetch(download: Download, folder: Path, show: Show = lambda done, total: None) -> Path:
    """Download into a folder, resuming an earlier attempt; verify the checksum."""
    path = folder / download.file
    if path.is_file() and _digest(path, download.checksum) == download.checksum:
        return path
    part = path.with_name(path.name + ".part")
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{part.parent}: cannot be created ({error.strerror}); choose another folder with --to"
        ) from error
    try:
        _receive(download.url, part, show)
        return _keep(download, part, path)
    except HTTPError as error:
        raise InputError(f"{download.url}: the server says {error.code} {error.reason}") from error
    except (OSError, HTTPException) as error:
        reason = error if str(error) else type(error).__name__
        there = file_size(part)
        how = f" to resume at {there:,} bytes" if there else f", or put {path} there manually"
        raise InputError(
            f"{download.url}: stopped ({reason}); run the same command again{how}"
        ) from error


def _receive(url: str, part: Path, show: Show) -> None:
    """Append the rest of the file to the part."""
    start = file_size(part)
    headers = {"User-Agent": f"xvfl/{VERSION}", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    try:
        answer = urlopen(Request(url, headers=headers), timeout=PATIENCE)
    except HTTPError as error:
        if start and error.code == RANGE_NOT_SATISFIABLE:
            return  # already complete; the checksum is verified below
        raise
    with answer:
        # A server without support for ranges sends the whole file.
        again = answer.status != PARTIAL_CONTENT
        done = 0 if again else start
        length = answer.headers.get("Content-Length")
        total = done + int(length) if length else None
        with part.open("wb" if again else "ab") as file:
            show(done, total)
            while data := answer.read(AT_ONCE):
                file.write(data)
                done += len(data)
                show(done, total)
    if total is not None and done < total:
        raise ConnectionError(f"{done:,} of {total:,} bytes received")


def _keep(download: Download, part: Path, path: Path) -> Path:
    """Extract the wanted file from the download, verify it, move it into place."""
    whole = part
    if download.inside:
        whole = path.with_name(path.name + ".whole")
        whole.write_bytes(_member(part, download))
    digest = _digest(whole, download.checksum)
    if digest != download.checksum:
        whole.unlink()
        part.unlink(missing_ok=True)
        raise InputError(
            f"{download.url}: expected {download.checksum}, got {digest}; the file was "
            "removed: try again, and if that fails the publisher's file has changed"
        )
    os.replace(whole, path)
    part.unlink(missing_ok=True)
    return path


def _member(part: Path, download: Download) -> bytes:
    """Read a member of a .zip, or of a .zip inside it."""
    try:
        return nested(part.read_bytes(), download.inside)
    except (KeyError, zipfile.BadZipFile, zlib.error) as error:
        part.unlink()
        raise InputError(
            f"{download.url}: expected {' > '.join(download.inside)} in it, but it is not "
            f"({error}); it was removed: try again"
        ) from error


def _digest(path: Path, checksum: str) -> str:
    kind = checksum.partition(":")[0]
    with path.open("rb") as file:
        return f"{kind}:{hashlib.file_digest(file, kind).hexdigest()}"
