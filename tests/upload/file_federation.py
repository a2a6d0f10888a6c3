"""A federation whose sides have certificates and configurations, and exchange files."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.upload.local_federation import ENCODER, PARTIES, LocalFederation
from xvfl.certs import Authority, create_authority
from xvfl.certs.sealed_file import create_sealing_key, read_sealing_key, write_sealed
from xvfl.config import UploadTerms
from xvfl.federation.upload.manifest import Chunk, UploadManifest, chunk_digest
from xvfl.matching.alignment import CoordinatorAlignment, TableFingerprint
from xvfl.matching.coordinator_session import CoordinatorMatch
from xvfl.service.config import CoordinatorConfig, CoordinatorLabels, PartyProcessConfig
from xvfl.service.coordinator_service import CoordinatorService
from xvfl.service.uploads.changed_rows import NEW
from xvfl.service.uploads.file_exchange import KEY, UPLOAD
from xvfl.wire.tls import Tls

SESSION = "ab" * 16
HOST = "localhost:1"


def certificates(folder: Path) -> Authority:
    """Create an authority with certificates of the coordinator and the parties."""
    authority = create_authority(folder)
    authority.issue("coordinator", ["localhost"])
    for name in PARTIES:
        authority.issue(name)
    return authority


def tls(folder: Path, name: str, authority: Path | None = None) -> Tls:
    """Return the certificate files of a side."""
    files = (authority or folder) / "ca.crt", folder / f"{name}.crt", folder / f"{name}.key"
    return Tls(*map(str, files))


def coordinator_config(certs: Path, labels: Path, state: Path, **more: Any) -> CoordinatorConfig:
    """Return the configuration of a coordinator."""
    return CoordinatorConfig(
        HOST,
        PARTIES,
        tls(certs, "coordinator"),
        CoordinatorLabels(str(labels), "id", "y"),
        state_dir=str(state),
        revocation_list=str(certs / "ca.crl"),
        signing_key=str(certs / "coordinator.release.key"),
        **more,
    )


def party_config(certs: Path, table: Path, state: Path, name: str) -> PartyProcessConfig:
    """Return the configuration of a party."""
    return PartyProcessConfig(
        HOST,
        str(table),
        tls(certs, name),
        id_column="id",
        state_dir=str(state),
        revocation_list=str(certs / "ca.crl"),
        release_key=str(certs / "coordinator.release.pub"),
        encoder=ENCODER,
        upload=UploadTerms("tests"),
    )


class FileFederation(LocalFederation):
    """A matched federation in folders with certificates, tables and labels."""

    def __init__(self, folder: Path, **more: Any) -> None:
        self.certs = folder / "certs"
        super().__init__(folder, **more)
        self.authority = certificates(self.certs)
        self.labels.rename_axis("id").to_csv(folder / "labels.csv")
        for name, table in self.tables.items():
            table.rename_axis("id").to_csv(folder / f"{name}.csv")

    def config(self, **options: Any) -> CoordinatorConfig:
        """Return the coordinator's configuration."""
        plain = super().config(**options)
        files = coordinator_config(self.certs, self.folder / "labels.csv", self.coordinator.path)
        return replace(
            plain,
            tls=files.tls,
            labels=files.labels,
            revocation_list=files.revocation_list,
            signing_key=files.signing_key,
        )

    def party(self, name: str) -> PartyProcessConfig:
        """Return a party's configuration."""
        table = self.folder / f"{name}.csv"
        config = party_config(self.certs, table, self.folder / name, name)
        return replace(config, encoder=self.encoders[name], upload=self.terms)

    def service(self) -> CoordinatorService:
        """Open the coordinator's folder."""
        return CoordinatorService(self.config(), show=False)


class StoredFederation:
    """A coordinator that is matched with 'bank', whose uploads are drawn at random."""

    def __init__(self, folder: Path, rows: int = 10) -> None:
        self.folder, self.rows, self.certs = folder, rows, folder / "certs"
        self.authority = certificates(self.certs)
        ids = [f"r{i}" for i in range(rows)]
        labels = "\n".join(["id,y", *(f"{each},{i % 2}" for i, each in enumerate(ids))])
        (folder / "labels.csv").write_text(labels)
        self.config = coordinator_config(self.certs, folder / "labels.csv", folder / "state")
        match = CoordinatorMatch(np.arange(rows), rows, bytes.fromhex(SESSION))
        fingerprint = TableFingerprint.of(["y"], ids)
        alignment = CoordinatorAlignment(dict.fromkeys(PARTIES, match), "folded", fingerprint)
        alignment.save(folder / "state" / "alignment.json")
        self.service = CoordinatorService(self.config, show=False)
        key = self.service.folder / KEY
        create_sealing_key(key)
        self.recipient = read_sealing_key(key).public_key().public_bytes_raw()

    def upload(self, **changes: Any) -> tuple[UploadManifest, list[Chunk]]:
        """Draw an upload of chunks of 4 rows."""
        version = int(changes.get("version", 1))
        values = torch.rand(self.rows, 3, 5, generator=torch.Generator().manual_seed(version))
        status = torch.full((self.rows,), 2, dtype=torch.uint8)
        origin = torch.full((self.rows,), NEW, dtype=torch.int32)
        parts = (origin.split(4), values.half().split(4), status.split(4))
        chunks = list(zip(*parts, strict=True))
        settings = {
            "party": "bank",
            "version": version,
            "session": SESSION,
            "rows": self.rows,
            "width": 5,
            "masked_copies": 2,
            "image": False,
            "encoder": "0" * 32,
            "chunk_rows": 4,
            "appended": self.rows,
            "chunks": tuple(map(chunk_digest, chunks)),
            "terms": UploadTerms(),
            "created": "2026-01-01T00:00:00Z",
            **changes,
        }
        return UploadManifest(**settings), chunks

    def write(
        self,
        name: str = "bank.upload",
        owner: Tls | None = None,
        forged: Mapping[str, Any] | None = None,
        **changes: Any,
    ) -> Path:
        """Write an upload to a file; `forged` replaces entries of the manifest without checks."""
        manifest, chunks = self.upload(**changes)
        path, text = self.folder / name, manifest.to_json()
        if forged:
            text = json.dumps({**json.loads(text), **forged})
        owner, content = owner or tls(self.certs, "bank"), {"manifest": text}
        parts = [part.numpy().tobytes() for chunk in chunks for part in chunk]
        write_sealed(path, owner, self.recipient, UPLOAD, content, parts)
        return path
