"""The coordinator's store of uploads: a file of embeddings for each party and version.

uploads/PARTY/VERSION/upload.json    the manifest
uploads/PARTY/VERSION/views.f16      embeddings by handle, float16, (n, 1 + c, d)
uploads/PARTY/VERSION/status.u8      status of the rows, (n,)
uploads/PARTY/VERSION/chunks.json    which chunks have arrived, until all have

Embeddings are read batch by batch from the file.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from xvfl.errors import WireError
from xvfl.federation.message_checks import check_tensor
from xvfl.model.run_dir import RunDir
from xvfl.upload.manifest import UploadManifest, chunk_digest, parse_manifest

MANIFEST, VIEWS, STATUS, CHUNKS = "upload.json", "views.f16", "status.u8", "chunks.json"


class UploadStore:
    """One party's upload of one version."""

    def __init__(self, folder: RunDir, manifest: UploadManifest) -> None:
        """Open the folder of an upload, or create it; reject another upload of the same version."""
        path = f"uploads/{manifest.party}/{manifest.version}"
        self.manifest, self._folder = manifest, RunDir(folder / path).create()
        if self._folder.has(MANIFEST):
            stored = parse_manifest((self._folder / MANIFEST).read_text(encoding="utf-8"))
            if stored != manifest:
                raise WireError(
                    f"party {manifest.party!r}: its upload of version {manifest.version} is not "
                    "the one that is stored; a new upload needs a new version"
                )
        else:
            self._folder.write_text(MANIFEST, manifest.to_json())

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
            raise WireError(f"{what}: its digest is not the one of the manifest")
        start, stop = (
            number * self.manifest.chunk_rows,
            number * self.manifest.chunk_rows + len(values),
        )
        self._map(VIEWS, np.float16, "r+")[start:stop] = values.numpy()
        self._map(STATUS, np.uint8, "r+")[start:stop] = status.numpy()
        self._folder.write_json(CHUNKS, {"arrived": sorted({*self._arrived(), number})})

    def views(self) -> Tensor:
        """Return the embeddings by handle, mapped from the file. (n, 1 + c, d)"""
        return torch.from_numpy(self._map(VIEWS, np.float16, "c"))

    def row_status(self) -> Tensor:
        """Return the status of the rows by handle. (n,)"""
        return torch.from_numpy(np.array(self._map(STATUS, np.uint8, "c")))

    def _arrived(self) -> set[int]:
        return set(self._folder.read_json(CHUNKS)["arrived"]) if self._folder.has(CHUNKS) else set()

    def _map(self, name: str, dtype: Any, mode: Any) -> "np.memmap[Any, Any]":
        m, path = self.manifest, self._folder / name
        shape = (m.rows, 1 + m.masked_copies, m.width) if name == VIEWS else (m.rows,)
        if not path.is_file():
            mode = "w+"
        return np.memmap(path, dtype=dtype, mode=mode, shape=shape)


def find_upload(folder: RunDir, party: str, session: str) -> UploadStore | None:
    """Return the newest complete upload of a party and alignment; None if there is none."""
    found = []
    for path in (folder / f"uploads/{party}").glob(f"*/{MANIFEST}"):
        manifest = parse_manifest(path.read_text(encoding="utf-8"))
        if manifest.session == session:
            found.append(UploadStore(folder, manifest))
    complete = [store for store in found if not store.missing]
    return max(complete, key=lambda store: store.manifest.version, default=None)
