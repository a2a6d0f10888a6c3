"""The coordinator's store of uploads: a file of embeddings for each party and version.

uploads/PARTY/VERSION/upload.json    the manifest
uploads/PARTY/VERSION/views.f16      embeddings by handle, float16, (n, 1 + c, d)
uploads/PARTY/VERSION/status.u8      status of the rows, (n,)
uploads/PARTY/VERSION/chunks.json    which chunks have arrived, until all have
uploads/PARTY/withdrawn.json         what the party has withdrawn
uploads/PARTY/revoked.json           exists while the party's certificate is revoked; the reason

Embeddings are read batch by batch from the file. Withdrawn rows are zeros, with the status of rows
that the party does not hold.
"""

import os
import shutil
from contextlib import suppress
from datetime import UTC, date, datetime
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from xvfl.errors import RunError, WireError
from xvfl.federation.message_checks import check_tensor
from xvfl.federation.upload.manifest import UploadManifest, chunk_digest, parse_manifest
from xvfl.model.run_dir import RunDir
from xvfl.service.uploads.withdrawn import Withdrawn

MANIFEST, VIEWS, STATUS, CHUNKS = "upload.json", "views.f16", "status.u8", "chunks.json"
DTYPES: dict[str, Any] = {VIEWS: np.float16, STATUS: np.uint8}
REVOKED = "revoked.json"
ERASED_BYTES = 2**24
"""Bytes that are read at once to erase rows."""
MAX_DISK_SHARE = 0.5
"""Largest share of the free space of the disk that an upload may take."""


class UploadStore:
    """One party's upload of one version."""

    def __init__(self, folder: RunDir, manifest: UploadManifest, create: bool = True) -> None:
        """Open the folder of an upload, or create it.

        Reject another upload of the same version, a version that was withdrawn, one whose terms
        have ended, one that is older than a version that is known, and one that is too large for
        the disk. Without `create`, the manifest is the stored one.
        """
        self.manifest, self._party = manifest, party_folder(folder, manifest.party)
        self._withdrawn = Withdrawn(self._party)
        self._opened = self._withdrawn.state
        self.withdrawn = self._gone()
        """Handles of the rows that were withdrawn before, in the order of withdrawal."""
        self._folder = RunDir(self._party / str(manifest.version))
        if not create:
            return
        if self._folder.has(MANIFEST):
            stored = parse_manifest((self._folder / MANIFEST).read_text(encoding="utf-8"))
            if stored != manifest:
                raise WireError(
                    f"party {manifest.party!r}: another upload of version {manifest.version} is "
                    "stored; a new upload needs a new version: `xvfl upload new-version`"
                )
        else:
            self._check_new()
            self._delete_unfinished(folder)
            self._folder.create().write_text(MANIFEST, manifest.to_json())

    @property
    def expired(self) -> bool:
        """Whether the last day of use is over."""
        last = self.manifest.terms.expires
        return bool(last) and date.fromisoformat(last) < datetime.now(UTC).date()

    @property
    def problem(self) -> str:
        """Why the upload may not be used now; empty if it may."""
        terms = self.manifest.terms
        # Before withdrawal: an expired upload is deleted as a withdrawn one is.
        if self.expired:
            return f"its terms ended on {terms.expires}"
        if self._withdrawn.covers(self.manifest.version):
            return "the party withdrew it"
        if self._party.has(REVOKED) and not terms.keep_after_revocation:
            return "the party's certificate is revoked"
        return ""

    @property
    def changed(self) -> bool:
        """Whether rows, or the whole upload, became unusable since it was opened."""
        return self._withdrawn.state != self._opened or bool(self.problem)

    @property
    def missing(self) -> list[int]:
        """Numbers of the chunks that have not arrived."""
        arrived = self._arrived()
        return [number for number in range(len(self.manifest.chunks)) if number not in arrived]

    def add(self, number: int, values: Tensor, status: Tensor) -> None:
        """Check a chunk by shape, range and digest, and store it."""
        shape, what = self.manifest.shape(number), f"chunk {number}"
        check_tensor(what, values, shape, torch.float16)
        check_tensor(f"{what}: row_status", status, shape[:1], torch.uint8)
        largest = self.manifest.max_value
        if values.numel() and float(values.abs().max()) > largest:
            raise WireError(f"{what}: expected numbers from -{largest:g} to {largest:g}")
        if status.numel() and int(status.max()) > 2:
            raise WireError(f"{what}: expected a row status of 0, 1 or 2")
        if chunk_digest(values, status) != self.manifest.chunks[number]:
            raise WireError(f"{what}: its digest differs from that in the manifest")
        start = number * self.manifest.chunk_rows
        stop = start + len(values)
        with self._withdrawn.locked():
            if problem := self.problem:
                raise WireError(f"{what}: the upload is not stored: {problem}")
            keep = torch.ones(len(values), dtype=torch.bool)
            keep[[each - start for each in self._gone() if start <= each < stop]] = False
            # A product would keep the signs of the numbers.
            kept = values.masked_fill(~keep.view(-1, 1, 1), 0)
            for name, data in ((VIEWS, kept), (STATUS, status * keep)):
                self._allocate(name)
                stored = self._map(name, "r+")
                stored[start:stop] = data.numpy()
                # Before the chunk counts as stored, also after a power failure.
                stored.flush()
            self._folder.write_json(CHUNKS, {"arrived": sorted({*self._arrived(), number})})

    def erase(self) -> None:
        """Overwrite withdrawn rows with zeros, also on the disk."""
        at = self._gone()
        for name in DTYPES:
            if not at or not self._folder.has(name):
                continue
            stored = self._map(name, "r+")
            step = max(1, ERASED_BYTES // stored[:1].nbytes)
            for start in range(0, len(at), step):
                part = at[start : start + step]
                if stored[part].any():
                    stored[part] = 0
            stored.flush()

    def delete(self) -> None:
        """Delete the whole upload."""
        shutil.rmtree(self._folder.path)

    def views(self) -> Tensor:
        """Return the embeddings by handle, mapped from the file. (n, 1 + c, d)"""
        return torch.from_numpy(self._map(VIEWS, "c"))

    def row_status(self) -> Tensor:
        """Return the status of the rows by handle. (n,)"""
        status = torch.from_numpy(np.array(self._map(STATUS, "c")))
        status[self._gone()] = 0
        return status

    def _gone(self) -> list[int]:
        rows = self._withdrawn.rows(self.manifest.session)
        return [each for each in rows if each < self.manifest.rows]

    def _check_new(self) -> None:
        """Reject a new upload that may not be stored."""
        version = self.manifest.version
        if problem := self.problem:
            raise WireError(f"version {version} is not stored: {problem}")
        stored = [int(path.name) for path in _versions(self._party)]
        newest = max([*stored, self._withdrawn.newest])
        if version < newest:
            raise WireError(
                f"version {version} is not stored: it is older than version {newest}, which the "
                "party has uploaded since"
            )
        free, needed = shutil.disk_usage(self._party.path).free, self.manifest.n_bytes
        if needed > MAX_DISK_SHARE * free:
            raise WireError(
                f"version {version} is not stored: it has {needed} bytes, and the disk has "
                f"{free} free; expected at most {MAX_DISK_SHARE:.0%} of them"
            )

    def _delete_unfinished(self, folder: RunDir) -> None:
        """Delete uploads that a newer version replaces before they were complete.

        A party that offers one version after the other would fill the disk with them.
        """
        with self._withdrawn.locked():
            for earlier in stored_uploads(folder, self.manifest.party):
                if earlier.missing:
                    earlier.delete()

    def _arrived(self) -> set[int]:
        return set(self._folder.read_json(CHUNKS)["arrived"]) if self._folder.has(CHUNKS) else set()

    def _allocate(self, name: str) -> None:
        """Create a file of zeros that has its space on the disk.

        Without the space, writing to the mapped file would end the process.
        """
        path, shape = self._folder / name, self._shape(name)
        if path.is_file():
            return
        n_bytes = prod(shape) * np.dtype(DTYPES[name]).itemsize
        temporary = path.with_name(f".{name}.tmp")
        try:
            with temporary.open("wb") as file:
                file.truncate(n_bytes)
                if hasattr(os, "posix_fallocate"):  # Not on macOS.
                    os.posix_fallocate(file.fileno(), 0, max(n_bytes, 1))
            os.replace(temporary, path)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise RunError(
                f"{path}: {n_bytes} bytes cannot be stored ({error.strerror}); free some space"
            ) from error

    def _shape(self, name: str) -> tuple[int, ...]:
        m = self.manifest
        return (m.rows, 1 + m.masked_copies, m.width) if name == VIEWS else (m.rows,)

    def _map(self, name: str, mode: Any) -> "np.memmap[Any, Any]":
        path = self._folder / name
        try:
            return np.memmap(path, dtype=DTYPES[name], mode=mode, shape=self._shape(name))
        except (OSError, ValueError) as error:
            raise RunError(
                f"{path}: cannot be read ({error}); the upload was deleted, or is damaged"
            ) from error


def party_folder(folder: RunDir, party: str) -> RunDir:
    """Return the folder of a party's uploads; create it if it does not exist."""
    return RunDir(folder / f"uploads/{party}").create()


def _versions(uploads: RunDir) -> list[Path]:
    """Return the folders of all uploads of a party."""
    paths = [path.parent for path in uploads.path.glob(f"*/{MANIFEST}")]
    return [path for path in paths if path.name.isdecimal()]


def stored_uploads(folder: RunDir, party: str) -> list[UploadStore]:
    """Return all uploads of a party, the newest version first."""
    stores = []
    for path in _versions(RunDir(folder / f"uploads/{party}")):
        # Another process may delete it meanwhile.
        with suppress(FileNotFoundError):
            manifest = parse_manifest((path / MANIFEST).read_text(encoding="utf-8"))
            stores.append(UploadStore(folder, manifest, create=False))
    return sorted(stores, key=lambda store: -store.manifest.version)


def find_upload(folder: RunDir, party: str, session: str, version: int = 0) -> UploadStore | None:
    """Return the newest complete upload of a party and alignment that may be used, or None.

    With a version, only this one.
    """
    for store in stored_uploads(folder, party):
        wanted = store.manifest.session == session and version in (0, store.manifest.version)
        if wanted and not store.missing and not store.problem:
            return store
    return None
