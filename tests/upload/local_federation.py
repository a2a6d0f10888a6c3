"""A federation by uploads in one process: real services, transports without a network."""

import shutil
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any

import numpy as np
import pandas as pd

from xvfl.config import EncoderConfig, TrainConfig, UploadTerms
from xvfl.federation.remote_party import RemoteParty
from xvfl.matching.alignment import CoordinatorAlignment, load_coordinator_alignment
from xvfl.model.run_dir import RunDir
from xvfl.service.align import match_parties
from xvfl.service.config import (
    CoordinatorConfig,
    CoordinatorLabels,
    MatchingConfig,
    PartyProcessConfig,
)
from xvfl.service.head_store import HeadStore
from xvfl.service.labeled_rows import MatchedLabels
from xvfl.service.party_inputs import PartyInputs
from xvfl.service.run_description import RunOutcome
from xvfl.service.uploads.upload_party import UploadPartyService
from xvfl.service.uploads.upload_run import UploadRun
from xvfl.wire.in_process import InProcessTransport, OfflineTransport
from xvfl.wire.tls import Tls
from xvfl.wire.transport import Transport

ENCODER = EncoderConfig(epochs=2, embedding_dim=16, hidden_dim=32, skip_rank=8, masked_copies=2)
TERMS = UploadTerms("tests")
N_ROWS, N_COLUMNS = 240, 3
PARTIES = ("bank", "shop")
ALIGNMENT = "alignment.json"
TLS = Tls("ca", "certificate", "key")


def tables(seed: int = 0, n: int = N_ROWS) -> tuple[dict[str, pd.DataFrame], pd.Series]:
    """Draw a table of each party, with missing cells and unmatched rows, and the labels."""
    rng = np.random.default_rng(seed)
    ids = [f"r{i}" for i in range(n)]
    columns = [f"x{i}" for i in range(N_COLUMNS)]
    found, total = {}, np.zeros(n)
    for name in PARTIES:
        values = rng.normal(size=(n, N_COLUMNS))
        total += values[:, 0]
        frame = pd.DataFrame(values, ids, columns).mask(rng.random(values.shape) < 0.1)
        extra = [f"{name} {i}" for i in range(30)]
        more = pd.DataFrame(rng.normal(size=(30, N_COLUMNS)), extra, columns)
        found[name] = pd.concat([frame.sample(frac=1, random_state=seed), more])
    return found, pd.Series((total > 0).astype(int), ids, name="y")


@cache
def matched_folder(n_rows: int) -> "TemporaryDirectory[str]":
    """Match ids, once in a test process; return the folders of all sides."""
    folder = TemporaryDirectory(prefix="matched-")
    made = LocalFederation(Path(folder.name), n_rows=n_rows, matched=False)
    made.match()
    made.close()
    return folder


class LocalFederation:
    """Parties and a coordinator with their folders; `log` collects their events.

    `matched` starts with copies of folders whose ids are matched.
    """

    def __init__(
        self,
        folder: Path,
        encoders: Mapping[str, EncoderConfig] | None = None,
        terms: UploadTerms = TERMS,
        n_rows: int = N_ROWS,
        matched: bool = True,
    ) -> None:
        if matched:
            shutil.copytree(matched_folder(n_rows).name, folder, dirs_exist_ok=True)
        self.folder, self.log, self.terms = folder, list[dict[str, Any]](), terms
        self.tables, self.labels = tables(n=n_rows)
        self.encoders = dict.fromkeys(PARTIES, ENCODER) | dict(encoders or {})
        self.services = {name: self.start_party(name) for name in PARTIES}
        self.coordinator = RunDir(folder / "coordinator").create()
        self.alignment: CoordinatorAlignment | None = None
        if matched:
            self.alignment = load_coordinator_alignment(self.coordinator / ALIGNMENT)

    def start_party(self, name: str) -> UploadPartyService:
        """Start a party, also a second time in the same folder."""
        folder = RunDir(self.folder / name).create()
        inputs = PartyInputs(name, self.party(name), self.tables[name], folder)
        return UploadPartyService(inputs, self.log.append)

    def party(self, name: str) -> PartyProcessConfig:
        """Return a party's configuration."""
        return PartyProcessConfig(
            "localhost:1",
            f"{name}.csv",
            TLS,
            release_key=str(self.folder / "coordinator" / "release.pub"),
            encoder=self.encoders[name],
            upload=self.terms,
        )

    def transports(self) -> dict[str, InProcessTransport]:
        """Connect to the parties."""
        endpoints = {name: service.endpoint for name, service in self.services.items()}
        return {n: InProcessTransport(each.hello, each.handle) for n, each in endpoints.items()}

    def match(self) -> CoordinatorAlignment:
        """Match ids, once."""
        if self.alignment is None:
            self.alignment = match_parties(
                self.transports(),
                list(self.labels.index),
                ["y"],
                MatchingConfig(),
                self.coordinator / ALIGNMENT,
                self.log.append,
                end=False,
            )
        return self.alignment

    def config(self, **options: Any) -> CoordinatorConfig:
        """Return the coordinator's configuration."""
        return CoordinatorConfig(
            "localhost:1",
            PARTIES,
            TLS,
            state_dir=str(self.coordinator.path),
            **{
                "labels": CoordinatorLabels("labels.csv", "id", "y"),
                "train": TrainConfig(epochs=3, device="cpu"),
                **options,
            },
        )

    def run(
        self,
        stop: Event | None = None,
        retrain: bool = False,
        offline: bool = False,
        **options: Any,
    ) -> RunOutcome:
        """Train; `offline` without connections to parties."""
        alignment, transports = self.match(), dict[str, Transport](self.transports())
        if offline:
            transports = {name: OfflineTransport() for name in transports}
        run = UploadRun(
            self.config(**options),
            MatchedLabels(self.labels.dropna(), list(self.labels.index), alignment),
            [RemoteParty(name, each) for name, each in transports.items()],
            self.log.append,
            retrain,
        )
        return run.run(stop or Event())

    @property
    def head(self) -> RunDir:
        """The folder of the current head."""
        return HeadStore(self.coordinator).current

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the logged events of a kind."""
        return [each for each in self.log if each["event"] == name]

    def close(self) -> None:
        """Stop all parties."""
        for service in self.services.values():
            service.close()
