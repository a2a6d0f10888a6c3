"""The coordinator's store of uploads: a file of embeddings for each party and version.

uploads/PARTY/VERSION/upload.json    the manifest; the folder of a later part is VERSION.PART
uploads/PARTY/VERSION/views.f16      embeddings by handle, float16, (n, 1 + c, d)
uploads/PARTY/VERSION/status.u8      status of the rows, (n,)
uploads/PARTY/VERSION/chunks.json    which chunks have arrived, and how many rows were sent
uploads/PARTY/withdrawn.json         what the party has withdrawn
uploads/PARTY/revoked.json           exists while the party's certificate is revoked; the reason

A part has all rows: those that are not sent are copied from its base, which is deleted when the
part is complete. Embeddings are read batch by batch from the file. Withdrawn rows are zeros, with
the status of rows that the party does not hold.
"""

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, date, datetime
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from xvfl.errors import RunError, WireError
from xvfl.federation.message_checks import check_tensor
from xvfl.federation.upload.manifest import UploadManifest, chunk_digest, parse_manifest
from xvfl.model.run_dir import RunDir
from xvfl.service.uploads.changed_rows import NEW, REPLACED, WITHDRAWN, is_sent
from xvfl.service.uploads.withdrawn import Withdrawn

MANIFEST, VIEWS, STATUS, CHUNKS = "upload.json", "views.f16", "status.u8", "chunks.json"
DTYPES: dict[str, Any] = {VIEWS: np.float16, STATUS: np.uint8}
REVOKED = "revoked.json"
ERASED_BYTES = 2**24
"""Bytes that are read at once to erase rows."""
MAX_DISK_SHARE = 0.5
"""Largest share of the free space of the disk that an upload may take."""


class UploadStore:
    """One party's upload of one version, up to one part."""

    def __init__(self, folder: RunDir, manifest: UploadManifest, create: bool = True) -> None:
        """Open the folder of an upload, or create it.

        Reject another upload of the same version and part, a version that was withdrawn, one whose
        terms have ended, one that is older than what is known, a part that does not follow the
        stored one, and one that is too large for the disk. Without `create`, the manifest is the
        stored one.
        """
        self.manifest, self._party = manifest, party_folder(folder, manifest.party)
        self._withdrawn = Withdrawn(self._party)
        self._opened = self._withdrawn.state
        self.withdrawn = self._gone()
        """Handles of the rows that were withdrawn before, in the order of withdrawal."""
        self._folder = RunDir(self._party / manifest.name)
        self._base: UploadStore | None = None
        if not create:
            return
        stored = stored_uploads(folder, manifest.party)
        if manifest.part:
            earlier = (each for each in stored if each.manifest.order < manifest.order)
            self._base = next((each for each in earlier if not each.missing), None)
        if self._folder.has(MANIFEST):
            known = parse_manifest((self._folder / MANIFEST).read_text(encoding="utf-8"))
            if known != manifest:
                raise WireError(
                    f"party {manifest.party!r}: another upload of version {manifest.name} is "
                    "stored; a new upload needs a new version: `xvfl upload new-version`"
                )
        else:
            self._check_new([each.manifest.order for each in stored])
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
    def replaced(self) -> bool:
        """Whether the upload was deleted, because a later part of its version is complete."""
        return not self._folder.has(MANIFEST)

    @property
    def changed(self) -> bool:
        """Whether rows, or the whole upload, became unusable since it was opened."""
        return self._withdrawn.state != self._opened or bool(self.problem)

    @property
    def missing(self) -> list[int]:
        """Numbers of the chunks that have not arrived."""
        arrived = self._arrived()
        return [number for number in range(len(self.manifest.chunks)) if str(number) not in arrived]

    def add(self, number: int, origin: Tensor, values: Tensor, status: Tensor) -> None:
        """Check a chunk by shape, range and digest, and store it."""
        (n_rows, *sizes), what = self.manifest.shape(number), f"chunk {number}"
        check_tensor(f"{what}: origin", origin, (n_rows,), torch.int32)
        base, sent = self._base, is_sent(origin)
        known = base.manifest.rows if base is not None else 0
        if int(origin.min()) < WITHDRAWN or int(origin.max()) >= known:
            raise WireError(f"{what}: expected origins in the part before")
        check_tensor(what, values, (int(sent.sum()), *sizes), torch.float16)
        check_tensor(f"{what}: row_status", status, values.shape[:1], torch.uint8)
        largest, noise = self.manifest.max_value, self.manifest.noise_std
        if values.numel() and float(values.abs().max()) > largest:
            raise WireError(f"{what}: expected numbers from -{largest:g} to {largest:g}")
        # A mean of squares; its tolerance is more than ten standard errors.
        likely = (1 / sizes[-1] + noise**2) * (1.1 + 15 / max(values.numel(), 1) ** 0.5)
        if noise and values.numel() and float(values.double().square().mean()) > likely:
            raise WireError(f"{what}: expected embeddings of length 1 with noise of {noise:g}")
        if status.numel() and int(status.max()) > 2:
            raise WireError(f"{what}: expected a row status of 0, 1 or 2")
        if chunk_digest((origin, values, status)) != self.manifest.chunks[number]:
            raise WireError(f"{what}: its digest differs from that in the manifest")
        start = number * self.manifest.chunk_rows
        stop = start + n_rows
        with self._withdrawn.locked():
            if problem := self.problem:
                raise WireError(f"{what}: the upload is not stored: {problem}")
            arrived = self._arrived()
            arrived[str(number)] = [int((origin == kind).sum()) for kind in (NEW, REPLACED)]
            counted = tuple(map(sum, zip(*arrived.values(), strict=True)))
            complete = len(arrived) == len(self.manifest.chunks)
            if complete and counted != (self.manifest.appended, self.manifest.replaced):
                raise WireError(f"{what}: expected as many rows as the manifest states")
            gone = [each - start for each in self._gone() if start <= each < stop]
            for name, data in ((VIEWS, values), (STATUS, status)):
                self._allocate(name)
                rows = np.zeros((n_rows, *data.shape[1:]), DTYPES[name])
                rows[sent.numpy()] = data.numpy()
                if base is not None:
                    kept = (origin >= 0).numpy()
                    rows[kept] = base._map(name, "r")[origin.numpy()[kept]]
                rows[gone] = 0
                stored = self._map(name, "r+")
                stored[start:stop] = rows
                # Before the chunk counts as stored, also after a power failure.
                stored.flush()
            self._folder.write_json(CHUNKS, {"arrived": arrived})
            if base is not None and complete:
                base.delete()

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

    def _check_new(self, stored: Sequence[tuple[int, int]]) -> None:
        """Reject a new upload that may not be stored."""
        version, order = self.manifest.name, self.manifest.order
        if problem := self.problem:
            raise WireError(f"version {version} is not stored: {problem}")
        newest = max([(self._withdrawn.newest, 0), *stored])
        if order < newest:
            raise WireError(
                f"version {version} is not stored: it is older than version "
                f"{'.'.join(str(each) for each in newest if each)}, which the party has "
                "uploaded since"
            )
        self.manifest.check_base(self._base.manifest if self._base else None)
        free, needed = shutil.disk_usage(self._party.path).free, self.manifest.row_bytes
        needed *= self.manifest.rows
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

    def _arrived(self) -> dict[str, list[int]]:
        """Return the numbers of new and of changed rows in the chunks that have arrived."""
        return dict(self._folder.read_json(CHUNKS)["arrived"]) if self._folder.has(CHUNKS) else {}

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
                f"{path}: cannot be read ({error}); restore it from a backup, or delete "
                f"{path.parent}, so that the party uploads it again"
            ) from error


def party_folder(folder: RunDir, party: str) -> RunDir:
    """Return the folder of a party's uploads; create it if it does not exist."""
    return RunDir(folder / f"uploads/{party}").create()


def stored_uploads(folder: RunDir, party: str) -> list[UploadStore]:
    """Return all uploads of a party, the newest version first."""
    stores = []
    for path in (folder / f"uploads/{party}").glob(f"*/{MANIFEST}"):
        # Another process may delete it meanwhile.
        with suppress(FileNotFoundError):
            if path.parent.name.replace(".", "", 1).isdecimal():
                manifest = parse_manifest(path.read_text(encoding="utf-8"))
                stores.append(UploadStore(folder, manifest, create=False))
    return sorted(stores, key=lambda store: store.manifest.order, reverse=True)


def find_upload(folder: RunDir, party: str, session: str, version: int = 0) -> UploadStore | None:
    """Return the newest complete upload of a party and alignment that may be used, or None.

    With a version, only this one.
    """
    for store in stored_uploads(folder, party):
        wanted = store.manifest.session == session and version in (0, store.manifest.version)
        if wanted and not store.missing and not store.problem:
            return store
    return None
