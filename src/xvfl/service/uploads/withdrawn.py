"""What a party has withdrawn: rows of an alignment, versions, or everything up to a version.

withdrawn.json    in the party's state folder, and in uploads/PARTY of the coordinator's

Rows are listed in the order of their withdrawal: the first n of them are those that an upload, or
the training of a head, left out.
"""

import os
from contextlib import AbstractContextManager
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import torch

from xvfl.errors import WireError
from xvfl.model.run_dir import RunDir
from xvfl.system.locks import file_lock
from xvfl.wire import codec
from xvfl.wire.messages import Withdraw

NO_ROWS = torch.zeros(0, dtype=torch.int32)
WITHDRAWN, LOCK = "withdrawn.json", "withdrawn.lock"
MAX_VERSIONS = 10_000
"""Versions that a party can withdraw one by one."""


class Withdrawn:
    """The record of a party's withdrawals in a folder; read again when it changes."""

    def __init__(self, folder: RunDir) -> None:
        self._folder = folder
        self._read: tuple[object, dict[str, Any]] = None, {}

    @property
    def state(self) -> tuple[int, int, int]:
        """Identify the current content of the record; zeros before the first withdrawal."""
        try:
            found = os.stat(self._folder / WITHDRAWN)
        except FileNotFoundError:
            return 0, 0, 0
        return found.st_ino, found.st_mtime_ns, found.st_size

    def rows(self, session: str) -> list[int]:
        """Return the handles of withdrawn rows of an alignment, in the order of withdrawal."""
        found: list[int] = self._load()["rows"].get(session, [])
        return found

    def covers(self, version: int) -> bool:
        """Return whether a version was withdrawn."""
        record = self._load()
        return version <= record["until"] or version in record["versions"]

    @property
    def newest(self) -> int:
        """The newest version that was withdrawn; 0 if none was."""
        record = self._load()
        return int(max([record["until"], *record["versions"]]))

    def add(self, message: Withdraw) -> None:
        """Record a withdrawal; one that is recorded already changes nothing."""
        record = self._load()
        until, versions, rows = record["until"], set(record["versions"]), dict(record["rows"])
        if message.everything:
            until = max(until, message.version)
        elif message.version:
            versions.add(message.version)
        else:
            known = rows.get(message.session, [])
            rows[message.session] = list(dict.fromkeys([*known, *message.handles.tolist()]))
        if len(versions) > MAX_VERSIONS:
            raise WireError(f"Withdraw: expected at most {MAX_VERSIONS} versions")
        changed = {"until": until, "versions": sorted(versions), "rows": rows}
        if changed != record:
            self._folder.write_json(WITHDRAWN, changed)

    def locked(self) -> AbstractContextManager[None]:
        """Exclude other threads and processes that withdraw or store chunks of this party."""
        return file_lock(self._folder / LOCK)

    def _load(self) -> dict[str, Any]:
        state = self.state
        if state != self._read[0]:
            empty = {"until": 0, "versions": [], "rows": {}}
            self._read = state, self._folder.read_json(WITHDRAWN) if any(state) else empty
        return self._read[1]


def request_digest(message: Withdraw) -> str:
    """Identify a withdrawal: the same one has the same digest, whenever and however it is sent."""
    return blake2b(codec.encode(replace(message, request_id=0)), digest_size=16).hexdigest()
