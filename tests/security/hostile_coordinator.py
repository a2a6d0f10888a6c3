"""A coordinator that sends a party any request it likes, over mutual TLS."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.processes import ENVIRONMENT
from xvfl.certs import create_authority
from xvfl.config import NetConfig, PrivacyConfig, TrainConfig
from xvfl.federation.run_settings import RunSettings
from xvfl.matching.alignment import PartyAlignment, TableFingerprint
from xvfl.matching.party_session import PartyMatch
from xvfl.model.run_dir import RunDir
from xvfl.service.align import match_parties
from xvfl.service.config import load_coordinator_config, load_party_config
from xvfl.service.listener import listen
from xvfl.service.party_inputs import PartyInputs
from xvfl.service.party_service import PartyService
from xvfl.system.event_log import read_log
from xvfl.wire.in_process import InProcessTransport
from xvfl.wire.messages import Begin, Embed, Instruction, Message
from xvfl.wire.request_ids import next_request_id
from xvfl.wire.transport import Transport

ROWS, COLUMNS = 600, 10
IDS = [f"c{i:04}" for i in range(ROWS)]
COORDINATOR = """\
listen = "127.0.0.1:0"
parties = ["shop"]
state_dir = "main"
[tls]
ca_certificate = "certs/ca.crt"
certificate = "certs/coordinator.crt"
private_key = "certs/coordinator.key"
[labels]
table = "labels.csv"
id_column = "customer"
column = "churned"
[net]
embedding_dim = 2048
members = 8
"""
PARTY = """\
coordinator = "localhost:PORT"
table = "shop.csv"
id_column = "customer"
state_dir = "shop"
[tls]
ca_certificate = "certs/ca.crt"
certificate = "certs/shop.crt"
private_key = "certs/shop.key"
"""
INTERACTIVE = 'training = "interactive"\n'
HONEST = RunSettings(
    "xvfl+",
    NetConfig(
        embedding_dim=256, hidden_dim=256, number_embedding_dim=0, skip_rank=64, members=1, heads=1
    ),
    TrainConfig(
        optimizer="adamw", epochs=60, learning_rate=2e-3, completion_interval=1, device="cpu"
    ),
    0.3,
    privacy=PrivacyConfig("off"),
)
"""What a coordinator of an interactive run sends."""
VIEWS = ("plain", *("masked",) * 7)
TRAINED = ("plain", "masked", "self", "masked", "self")
"""The views of an honest training batch."""


def secret_table() -> pd.DataFrame:
    """Return the party's columns: independent, half of them skewed, and 3 % missing."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(ROWS, COLUMNS))
    x[:, ::2] = np.exp(0.5 * x[:, ::2])
    x[rng.random(x.shape) < 0.03] = np.nan
    return pd.DataFrame(x, columns=[f"x{i}" for i in range(COLUMNS)])


@dataclass
class HostileCoordinator:
    """A connected party, and how to send it requests."""

    folder: Path
    transport: Transport
    handles: NDArray[np.int64]
    """(n,) handle of each row of the secret table."""
    log: Callable[[], list[dict[str, Any]]]
    """Return the party's log."""
    pid: int = 0
    update: int = 0

    def send(self, request: Callable[[int], Message]) -> Message:
        """Send a request with the next request id."""
        return self.transport.request(request(next_request_id())).result(300)

    def begin(
        self, settings: RunSettings, run: str = "a", training: Tensor | None = None
    ) -> Message:
        """Begin a run."""
        return self.begin_with({**asdict(settings), "run": run}, run, training)

    def begin_with(
        self, settings: dict[str, Any], run: str = "a", training: Tensor | None = None
    ) -> Message:
        """Begin a run with any settings."""
        handles = torch.arange(int(0.68 * ROWS)) if training is None else training
        text = json.dumps(settings)
        return self.send(lambda number: Begin(number, run, 0, text, handles.int()))

    def embed(
        self,
        step: int = 0,
        rate: float | None = None,
        rows: Tensor | None = None,
        views: tuple[str, ...] = VIEWS,
        training: bool = True,
        kind: str = "step",
    ) -> Message:
        """Request a training batch; with a rate, send an update of the last one."""
        instructions: tuple[Instruction, ...] = ()
        if rate is not None:
            self.update += 1
            instructions = (Instruction(self.update, kind, rate),)
        handles = torch.arange(ROWS) if rows is None else rows
        return self.send(
            lambda number: Embed(number, (), instructions, step, training, views, handles.int())
        )

    def rejections(self) -> list[str]:
        """Return the reasons of the rejected requests in the party's log."""
        return [each["reason"] for each in self.log() if each["event"] == "request_rejected"]

    def peak_bytes(self) -> int:
        """Return the peak memory of the party's process."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return 1024 * int(status.split("VmHWM:")[1].split()[0])


@contextmanager
def attacked_process(folder: Path, options: str = INTERACTIVE) -> Iterator[HostileCoordinator]:
    """Start a party with these options, accept it as a coordinator does, and match its ids."""
    write_files(folder)
    config = load_coordinator_config(folder / "coordinator.toml")
    with listen(config, lambda event: None) as server:
        (folder / "shop.toml").write_text(options + PARTY.replace("PORT", str(server.port)))
        process = start_party(folder)
        try:
            path = folder / "main" / "alignment.json"
            alignment = match_parties(
                server.transports, IDS, ["churned"], config.matching, path, end=False
            )
            yield HostileCoordinator(
                folder,
                server.transports["shop"],
                alignment.matches["shop"].handles,
                lambda: read_log(folder / "shop"),
                process.pid,
            )
        finally:
            process.kill()
            process.wait()


def attacked_service(folder: Path) -> HostileCoordinator:
    """Start an interactive party in this process; its ids are matched."""
    if not (folder / "shop.toml").exists():
        write_files(folder)
        (folder / "shop.toml").write_text(INTERACTIVE + PARTY.replace("PORT", "1"))
        match = PartyMatch(np.arange(ROWS), ROWS, bytes(16))
        columns = ["customer", *secret_table().columns]
        alignment = PartyAlignment(match, "folded", TableFingerprint.of(columns[1:], IDS))
        alignment.save(folder / "shop" / "alignment.json")
    state, events = RunDir(folder / "shop").create(), list[dict[str, Any]]()
    inputs = PartyInputs.load("shop", load_party_config(folder / "shop.toml"), state)
    endpoint = PartyService(inputs, events.append).endpoint
    transport = InProcessTransport(endpoint.hello, endpoint.handle)
    return HostileCoordinator(folder, transport, np.arange(ROWS), lambda: events)


def write_files(folder: Path) -> None:
    """Write the party's table, the labels, the certificates and the coordinator's side."""
    authority = create_authority(folder / "certs")
    authority.issue("coordinator", hosts=("localhost",))
    authority.issue("shop")
    table = secret_table()
    table.insert(0, "customer", IDS)
    table.to_csv(folder / "shop.csv", index=False)
    pd.DataFrame({"customer": IDS, "churned": "yes"}).to_csv(folder / "labels.csv", index=False)
    (folder / "coordinator.toml").write_text(COORDINATOR)
    (folder / "main").mkdir()


def start_party(folder: Path) -> "subprocess.Popen[bytes]":
    """Start `xvfl party` in a process of its own."""
    with (folder / "party.out").open("ab") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "xvfl", "party", "shop.toml"],
            cwd=folder,
            env=ENVIRONMENT,
            stdout=out,
            stderr=out,
        )
