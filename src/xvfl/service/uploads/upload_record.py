"""What a party records of its uploads of a version, to find rows that are new or have changed.

upload.json              the manifest of the last part
rows-PART.safetensors    of each row: keyed digests of id and content, its origin, and how often its
                         embedding was released in this version
learned.safetensors      keyed digests of the ids that the encoder learned from
stored.json              digest of the last part that is stored, or written to a file
"""

from collections.abc import Iterable

import numpy as np
import torch

from xvfl.federation.party_worker import PartyWorker
from xvfl.federation.upload.manifest import UploadManifest, parse_manifest
from xvfl.federation.upload.private_worker import ROWS_AT_ONCE, row_bytes
from xvfl.model.run_dir import RunDir
from xvfl.service.uploads.changed_rows import NO_ROWS, Digests, RowRecord, compare_rows, digest_rows
from xvfl.trail.approvals import NeedsApproval

UPLOAD, STORED, LEARNED = "upload.json", "stored.json", "learned.safetensors"


class UploadRecord:
    """The record of the uploads of one version.

    Parameters
    ----------
    folder
        The folder of the version.
    key
        The party's secret, which keys the digests.
    """

    def __init__(self, folder: RunDir, key: bytes) -> None:
        self._folder, self._key = folder, key

    @property
    def manifest(self) -> UploadManifest | None:
        """The manifest of the last part; None before the first one."""
        path = self._folder / UPLOAD
        return parse_manifest(path.read_text(encoding="utf-8")) if path.is_file() else None

    def save(self, manifest: UploadManifest) -> None:
        """Save the manifest of the next part."""
        self._folder.write_text(UPLOAD, manifest.to_json())
        (self._folder / f"rows-{manifest.part - 1}.safetensors").unlink(missing_ok=True)

    @property
    def stored(self) -> bool:
        """Whether the last part is stored, or written to a file: the next one can follow it."""
        known = self._folder.read_json(STORED) if self._folder.has(STORED) else {}
        return bool(known) and self.manifest is not None and known["digest"] == self.manifest.digest

    def set_stored(self, digest: str) -> None:
        """Record that a part is stored."""
        self._folder.write_json(STORED, {"digest": digest})

    def digest_ids(self, ids: Iterable[str]) -> Digests:
        """Return keyed digests of normalized ids."""
        return digest_rows((each.encode(errors="surrogatepass") for each in ids), self._key)

    def check_learned(self, learned: Digests, held_out: Digests, trained: bool) -> None:
        """Record the ids that an encoder learns from; reject held-out ones that it has learned."""
        if not (trained and self._folder.has(LEARNED)):
            self._folder.save_tensors(LEARNED, {"ids": torch.from_numpy(learned)}, {})
        known = self._folder.load_tensors(LEARNED)[0]["ids"].numpy()
        if count := int(np.isin(held_out, known).sum()):
            raise NeedsApproval(
                "new-version",
                f"the encoder has learned from {count} rows that are held out since ids were "
                "matched again; train another one with `xvfl upload new-version`",
            )

    def rows(self, part: int) -> RowRecord:
        """Load the record of the rows of a part."""
        tensors, _ = self._folder.load_tensors(f"rows-{part}.safetensors")
        return {name: each.numpy() for name, each in tensors.items()}

    def save_rows(self, part: int, rows: RowRecord) -> None:
        """Save the record of the rows of a part."""
        tensors = {name: torch.from_numpy(each) for name, each in rows.items()}
        self._folder.save_tensors(f"rows-{part}.safetensors", tensors, {})

    def compare(
        self, worker: PartyWorker, ids: Digests, rows: Digests, gone: Iterable[int], part: int
    ) -> RowRecord:
        """Compare rows, in the order of their handles, with those of the part before."""
        parts = torch.split(torch.from_numpy(rows).to(worker.table.device), ROWS_AT_ONCE)
        contents = (each for some in parts for each in row_bytes(worker.table.take(some)))
        base = self.rows(part - 1) if part else NO_ROWS
        return compare_rows(base, ids, digest_rows(contents, self._key), gone)

    @property
    def most_releases(self) -> int:
        """How often the embedding of a row was released at most; 1 before the upload."""
        found = self._folder.path.glob("rows-*.safetensors")
        tensors = [self._folder.load_tensors(path.name)[0]["releases"] for path in found]
        return max([1, *(int(each.max()) for each in tensors if len(each))])
