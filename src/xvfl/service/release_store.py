"""The coordinator's signed releases, in its state folder: the newest one of each party.

releases.json            number, kind and delivery of each party's newest release
releases/PARTY.release   the signed message; it may also be handed over as a file

Every release and revocation has a number that is higher than all before, so that a party can
reject an older one.
"""

import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from torch import Tensor

from xvfl.errors import RunError, WireError
from xvfl.model.run_dir import RunDir
from xvfl.service.release import load_signing_key, sign_release
from xvfl.system.locks import file_lock
from xvfl.wire import codec
from xvfl.wire.messages import Release

INDEX, LOCK = "releases.json", "releases.lock"


@dataclass(frozen=True)
class ReleaseRecord:
    """The newest release of a party."""

    number: int
    run: str
    """The run whose head is released or revoked."""
    revoked: bool
    created: str
    """ISO 8601, UTC."""
    delivered: bool = False
    """Whether the party has confirmed it."""

    def __str__(self) -> str:
        kind = "revocation" if self.revoked else "release"
        return f"{kind} {self.number} of run {self.run}"


class ReleaseStore:
    """Signs, stores and loads releases."""

    def __init__(self, folder: RunDir, signing_key: str | None = None) -> None:
        """Load the signing key; see `load_signing_key`."""
        self._folder, self._key = folder, load_signing_key(folder, signing_key)

    def records(self) -> dict[str, ReleaseRecord]:
        """Return the newest release of each party that has one."""
        if not self._folder.has(INDEX):
            return {}
        try:
            index = self._folder.read_json(INDEX)
            return {name: ReleaseRecord(**each) for name, each in index.items()}
        except (TypeError, RunError) as error:
            raise RunError(
                f"{self._folder / INDEX}: damaged ({error}); move it away and release again"
            ) from error

    def release(
        self, party: str, manifest: Mapping[str, Any], head: Mapping[str, Tensor]
    ) -> ReleaseRecord:
        """Sign the head of a party, or a revocation; it replaces an earlier release."""
        # A process that predicts marks releases as delivered meanwhile.
        with file_lock(self._folder / LOCK):
            records, now = self.records(), datetime.now(UTC).isoformat(timespec="seconds")
            number = max([int(time.time()), *(each.number + 1 for each in records.values())])
            record = ReleaseRecord(number, str(manifest["run"]), "revoked" in manifest, now)
            signed = {**manifest, "number": number, "created": now}
            message = sign_release(self._key, signed, head)
            self._folder.write_bytes(_file(party), codec.encode(message))
            self._save({**records, party: record})
        return record

    def revoke(self, party: str, reason: str) -> ReleaseRecord:
        """Sign the revocation of all releases of a party so far."""
        record = self.records().get(party)
        if record is None:
            raise RunError(f"{party}: nothing was released to this party, so nothing is revoked")
        if record.revoked:
            raise RunError(f"{party}: its release is revoked already ({record})")
        manifest = {"party": party, "run": record.run, "revoked": reason or "no reason given"}
        return self.release(party, manifest, {})

    def path(self, party: str) -> Path:
        """Return the file of a party's newest release."""
        return self._folder / _file(party)

    def load(self, party: str) -> Release:
        """Load the newest release of a party."""
        return read_release(self.path(party))

    def pending(self, parties: Collection[str]) -> list[str]:
        """Return those of the given parties that have not received their newest release."""
        records = self.records()
        return [name for name in parties if name in records and not records[name].delivered]

    def mark_delivered(self, party: str, number: int) -> None:
        """Record that a party has confirmed a release, unless a newer one was signed meanwhile."""
        with file_lock(self._folder / LOCK):
            records = self.records()
            if records[party].number == number:
                self._save({**records, party: replace(records[party], delivered=True)})

    def _save(self, records: Mapping[str, ReleaseRecord]) -> None:
        self._folder.write_json(INDEX, {name: asdict(each) for name, each in records.items()})


def read_release(path: Path) -> Release:
    """Read a release from a file; its signature is not checked."""
    try:
        message = codec.decode(path.read_bytes())
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    except WireError as error:
        raise RunError(f"{path}: not a release, or damaged ({error})") from error
    if not isinstance(message, Release):
        raise RunError(f"{path}: expected a release, got {type(message).__name__}")
    return message


def _file(party: str) -> str:
    return f"releases/{quote(party, safe='')}.release"
