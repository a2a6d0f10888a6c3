"""Append entries to a trail: locked between processes, and on the disk before the call returns."""

import fcntl
import os
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from xvfl.system.user import user_name
from xvfl.trail.entries import (
    EVENTS,
    INCOMPLETE,
    PEER_ENTRY,
    START,
    TRAIL,
    EntryId,
    describe_incomplete,
    id_of,
    make_entry,
    parse_entry,
    write_entry,
)

MAX_WAITING = 1000
"""Events that wait in memory while the file cannot be written."""
BLOCK_BYTES = 2**16
"""Bytes that are read at once to find the last entry."""


class Trail:
    """Appends events to the trail of a state folder.

    Callable with each event of a log; only those in `EVENTS` become entries. An error is not
    raised: the entry waits, and is written with the next event.

    Parameters
    ----------
    folder : Path
        The state folder.
    side : str
        Name of the side: `coordinator`, or the party's.
    """

    def __init__(self, folder: Path, side: str) -> None:
        self.path, self.side = folder / TRAIL, side
        self._lock = threading.Lock()
        self._waiting = deque[Mapping[str, Any]](maxlen=MAX_WAITING)
        self.problem = ""
        """Why entries wait; empty if none do."""
        self.n_failed = 0
        """Entries that could not be written at once."""

    def __call__(self, event: Mapping[str, Any]) -> None:
        """Append an event of the log, and those that wait."""
        wanted = event.get("event") in EVENTS
        with self._lock:
            if wanted:
                self._waiting.append(event)
            if not self._waiting:
                return
            try:
                with _locked(self.path) as file:
                    while self._waiting:
                        self._write(file, self._waiting[0])
                        self._waiting.popleft()
                self.problem = ""
            except OSError as error:
                self.n_failed += wanted
                self.problem = f"{TRAIL} cannot be written ({error.strerror or error})"

    def record_peer(self, peer: str, entry: EntryId, acknowledged: EntryId) -> None:
        """Append the newest entry of a peer, and the newest own entry that it has recorded."""
        facts = {"peer": peer, "entry": str(entry), "acknowledged": str(acknowledged)}
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        with self._lock, _locked(self.path) as file:
            own = str(_newest(_last_entry(file)[0]))
            self._write(file, {"time": time, "event": PEER_ENTRY, **facts, "own": own})

    def newest_id(self) -> EntryId:
        """Return the newest entry that does not itself record an entry of a peer.

        Otherwise each exchange would make new ones.
        """
        try:
            with self.path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH)
                return _newest(_last_entry(file.fileno())[0])
        except FileNotFoundError:
            return EntryId()

    def has(self, wanted: EntryId) -> bool:
        """Return whether the trail has an entry with this number and hash; hashes are not checked.

        An empty trail has entry 0.
        """
        if not wanted.number:
            return True
        with suppress(OSError), self.path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            for entry in _backwards(file.fileno()):
                if entry["number"] <= wanted.number:
                    return id_of(entry) == wanted
        return False

    def _write(self, file: int, event: Mapping[str, Any]) -> None:
        """Append an entry after the last one; name what a crash has cut short."""
        last, rest, ended = _last_entry(file)
        number, previous = (last["number"], last["hash"]) if last else (0, START)
        lines = b"" if ended else b"\n"
        events = [event]
        if rest:
            cut = describe_incomplete(rest)
            events = [{"time": event["time"], "event": INCOMPLETE, **cut}, event]
        for each in events:
            number += 1
            entry = make_entry(number, each, user_name(), self.side, previous)
            previous = entry["hash"]
            lines += write_entry(entry)
        size = os.fstat(file).st_size
        try:
            _write_all(file, lines)
            os.fsync(file)
        except OSError:
            # A full disk: without this, the next entry would name an incomplete line.
            with suppress(OSError):
                os.ftruncate(file, size)
            raise


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    """Open a trail, and exclude other threads and processes that append to it."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        file, new = os.open(path, flags), False
    except FileNotFoundError:
        file, new = os.open(path, flags | os.O_CREAT, 0o600), True
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        if new:
            _flush_folder(path.parent)
        yield file
    finally:
        os.close(file)


def _flush_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _write_all(file: int, content: bytes) -> None:
    while content:
        content = content[os.write(file, content) :]


def _last_entry(file: int) -> tuple[dict[str, Any] | None, bytes, bool]:
    """Return the last entry, what follows it, and whether the file ends with the end of a line."""
    size = os.fstat(file).st_size
    block, ended = BLOCK_BYTES, True
    while True:
        start = max(0, size - block)
        content = os.pread(file, size - start, start)
        ended = content.endswith(b"\n") or not content
        lines = content.removesuffix(b"\n").split(b"\n") if content else []
        # The first line of a block may be the end of a longer one.
        for index in reversed(range(0 if start == 0 else 1, len(lines))):
            if (entry := parse_entry(lines[index])) is not None:
                return entry, b"\n".join(lines[index + 1 :]), ended
        if start == 0:
            return None, b"\n".join(lines), ended
        block *= 4


def _backwards(file: int) -> Iterator[dict[str, Any]]:
    """Read the entries from the last one to the first."""
    end, rest = os.fstat(file).st_size, b""
    while end:
        start = max(0, end - BLOCK_BYTES)
        lines = (os.pread(file, end - start, start) + rest).split(b"\n")
        # The first line of a block may be the end of a longer one.
        end, rest = start, lines[0] if start else b""
        for line in reversed(lines[1 if start else 0 :]):
            if (entry := parse_entry(line)) is not None:
                yield entry


def _newest(entry: Mapping[str, Any] | None) -> EntryId:
    """Return the newest entry that records no entry of a peer."""
    if entry is None:
        return EntryId()
    if entry["event"] == PEER_ENTRY:
        return EntryId.parse(str(entry["facts"].get("own"))) or id_of(entry)
    return id_of(entry)
