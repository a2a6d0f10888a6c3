"""Download a file: resumable, checked, put into place only when whole and right."""

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
from xvfl_lab.datasets.source import Download

Show = Callable[[int, int | None], None]
"""Told the bytes there so far and, where the server says it, how many there will be."""

AT_ONCE = 1 << 18
PATIENCE = 60.0
"""Seconds without a byte after which the connection counts as lost."""
RANGE_NOT_SATISFIABLE = 416
PARTIAL_CONTENT = 206


def fetch(download: Download, folder: Path, show: Show = lambda done, total: None) -> Path:
    """Download into the folder, going on where an earlier attempt stopped; keep what checks."""
    path = folder / download.file
    if path.is_file() and _digest(path, download.checksum) == download.checksum:
        return path
    part = path.with_name(path.name + ".part")
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{part.parent}: cannot be made ({error.strerror}); name another folder with --to"
        ) from error
    try:
        _receive(download.url, part, show)
        return _keep(download, part, path)
    except HTTPError as error:
        raise InputError(f"{download.url}: the server says {error.code} {error.reason}") from error
    except (OSError, HTTPException) as error:
        reason = error if str(error) else type(error).__name__
        there = _size(part)
        how = f" to go on from {there:,} bytes" if there else f", or put {path} there by hand"
        raise InputError(
            f"{download.url}: stopped ({reason}); run the same command again{how}"
        ) from error


def _receive(url: str, part: Path, show: Show) -> None:
    """Append to the part what is still to come."""
    start = _size(part)
    headers = {"User-Agent": f"xvfl/{VERSION}", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    try:
        answer = urlopen(Request(url, headers=headers), timeout=PATIENCE)
    except HTTPError as error:
        if start and error.code == RANGE_NOT_SATISFIABLE:
            return  # nothing is left to come: the checksum tells whether it is right
        raise
    with answer:
        # A server that knows no ranges sends everything again.
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
        raise ConnectionError(f"{done:,} of {total:,} bytes came")


def _keep(download: Download, part: Path, path: Path) -> Path:
    """Take the wanted file out of the download, check it, put it into place."""
    if download.inside:
        data = _member(part, download)
        whole = path.with_name(path.name + ".whole")
        whole.write_bytes(data)
    else:
        whole = part
    found = _digest(whole, download.checksum)
    if found != download.checksum:
        whole.unlink()
        part.unlink(missing_ok=True)
        raise InputError(
            f"{download.url}: expected {download.checksum}, but what came has {found}; it was "
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


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0
