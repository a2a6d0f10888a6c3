"""A coordinator that sends a party any request it likes, over mutual TLS, and the column attack.

The attack needs no known row. With one hidden unit and a wide linear skip, the party's embedding is
tanh of a linear map of features and flags. Two masked copies that keep the same single feature then
differ by a multiple of this feature's direction: a direction in which many copies lie is a column.
Shapes: n rows, c copies, d embedding width, p columns.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.processes import SOURCES
from xvfl.certs import create_authority
from xvfl.certs.pem_files import OWNER_ONLY, write_new
from xvfl.config import NetConfig, PrivacyConfig, TrainConfig
from xvfl.federation.run_settings import RunSettings
from xvfl.matching.alignment import PartyAlignment, TableFingerprint
from xvfl.matching.party_session import PartyMatch
from xvfl.model.run_dir import RunDir
from xvfl.service.align import match_parties
from xvfl.service.config import load_coordinator_config, load_party_config
from xvfl.service.listener import listen
from xvfl.service.log import read_log
from xvfl.service.party_inputs import PartyInputs
from xvfl.service.party_service import PartyService
from xvfl.service.secret import SECRET
from xvfl.wire.in_process import InProcessTransport
from xvfl.wire.messages import Begin, Embed, Embedded, ErrorReply, Instruction, Message, Ready
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
UNMEASURED = """\
[limits]
min_interaction = 0
"""
"""Limits of a party that does not measure its net."""
HONEST = RunSettings(
    "xvfl+",
    NetConfig(embedding_dim=256, hidden_dim=256, number_embedding_dim=0, skip_rank=64, members=1),
    TrainConfig(epochs=60, learning_rate=2e-3, completion_interval=1, device="cpu"),
    0.3,
    privacy=PrivacyConfig("no_gradients"),
)
"""What a coordinator with default options sends."""
NARROWEST = replace(HONEST, net=replace(HONEST.net, hidden_dim=128))
"""The net with the fewest hidden units that a party accepts with a linear skip."""
LINEAR = NetConfig(
    embedding_dim=256, hidden_dim=1, number_embedding_dim=0, skip_rank=100_000, members=1
)
"""The nets of the attack: nearly linear bottoms."""
N_COPIES, N_ANCHORS, MIN_SUPPORT = 1500, 500, 6
"""Copies that are compared, how many of them with all others, and copies on a line."""
VIEWS = ("plain", *("masked",) * 7)
TRAINED = ("plain", "masked", "self", "masked", "self")
"""The views of an honest training batch."""


def trained_by(reconstruction: float = 0.3, **options: Any) -> RunSettings:
    """Return the honest settings with other options of training."""
    train = replace(HONEST.train, **options)
    return replace(HONEST, train=train, reconstruction=reconstruction)


LINEARIZING = {
    "high learning rate": (trained_by(learning_rate=0.05), torch.arange(64), 10),
    "weight decay in batches without a row": (
        trained_by(learning_rate=0.05, weight_decay=0.1),
        torch.full((8,), -1),
        300,
    ),
}
"""Settings within the bounds, the rows of each batch and the number of updates that train the
hidden layers away, and leave the linear skip alone."""


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
    request_id: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    update: int = 0

    def send(self, request: Callable[[int], Message]) -> Message:
        """Send a request with the next request id."""
        self.request_id += 1
        return self.transport.request(request(self.request_id)).result(300)

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
def attacked_process(folder: Path) -> Iterator[HostileCoordinator]:
    """Start a party with default options, accept it as a coordinator does, and match its ids."""
    write_files(folder)
    config = load_coordinator_config(folder / "coordinator.toml")
    with listen(config, lambda event: None) as server:
        (folder / "shop.toml").write_text(PARTY.replace("PORT", str(server.port)))
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


def attacked_service(
    folder: Path, secret: bytes = bytes(32), limits: str = ""
) -> HostileCoordinator:
    """Start the same party in this process, with a given secret; its ids are matched."""
    if not (folder / "shop.toml").exists():
        write_files(folder)
        (folder / "shop.toml").write_text(PARTY + limits)
        match = PartyMatch(np.arange(ROWS), ROWS, bytes(16), ROWS)
        columns = ["customer", *secret_table().columns]
        alignment = PartyAlignment(match, "folded", TableFingerprint.of(columns[1:], IDS))
        alignment.save(folder / "shop" / "alignment.json")
        write_new(folder / "shop" / SECRET, secret.hex().encode(), OWNER_ONLY)
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
            env={"PYTHONPATH": SOURCES, "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
            stdout=out,
            stderr=out,
        )


def read_columns(
    attacker: HostileCoordinator, settings: RunSettings, steps: int = 1
) -> list[float]:
    """Run the attack; return how well each column is read, as a rank correlation. (p,)"""
    replies: list[Message] = []
    if isinstance(attacker.begin(settings), Ready):
        replies = [attacker.embed(step) for step in range(steps)]
    batches = [each.values.double().numpy() for each in replies if isinstance(each, Embedded)]
    if not batches:
        return [0.0] * COLUMNS
    return correlations(recover_columns(np.concatenate(batches, 1)), attacker.handles)


def read_trained_columns(
    attacker: HostileCoordinator, settings: RunSettings, rows: Tensor, updates: int
) -> tuple[list[float], int]:
    """Run the attack after updates; return how well columns are read, and the updates. (p,)

    The attacker requests the views of the attack ten times, and takes the last reply.
    """
    last, done, kept = attacker.begin(settings), 0, list[NDArray[np.float64]]()
    while not isinstance(last, ErrorReply) and done < updates:
        rate = settings.train.learning_rate if done else None
        last = attacker.embed(done, rate, rows, TRAINED)
        done += isinstance(last, Embedded)
        if isinstance(last, Embedded) and done % (updates // 10) == 0:
            last = attacker.embed(done, settings.train.learning_rate)
            kept = [last.values.double().numpy()] if isinstance(last, Embedded) else kept
    if not kept:
        return [0.0] * COLUMNS, done
    return correlations(recover_columns(rescaled(kept[0])), attacker.handles), done


def rescaled(E: NDArray[np.float64]) -> NDArray[np.float64]:
    """Center embeddings and scale them to one size, before tanh."""
    z = np.arctanh(np.clip(E, -1 + 1e-7, 1 - 1e-7))
    z = z - z.mean((0, 1))
    result: NDArray[np.float64] = np.tanh(0.2 * z / z.std())
    return result


def recover_columns(E: NDArray[np.float64]) -> NDArray[np.float64]:
    """Estimate columns from the embeddings (n, v, d) of plain and masked copies. (n, columns)"""
    z = np.arctanh(np.clip(E, -1 + 1e-7, 1 - 1e-7))
    copies = z[:, 1:].reshape(-1, z.shape[-1])
    copies = copies[np.random.default_rng(0).permutation(len(copies))[:N_COPIES]]
    mean = copies.mean(0)
    basis = np.linalg.svd(copies - mean, full_matrices=False)[2][: 2 * COLUMNS + 1]
    directions = recurring_directions(((copies - mean) @ basis.T).astype(np.float32))
    if not len(directions):
        return np.zeros((len(z), 1))
    plain = (z[:, 0] - mean) @ basis.T
    # What is left of the rows in no column's direction comes from the hidden unit.
    rest = plain - plain.mean(0)
    rest = rest - rest @ np.linalg.pinv(directions) @ directions
    hidden = np.linalg.svd(rest, full_matrices=False)[2][:1]
    columns: NDArray[np.float64] = plain @ np.linalg.pinv(np.concatenate([directions, hidden]))
    return columns[:, : len(directions)]


def recurring_directions(points: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the directions of lines on which many points lie, at most one for each column."""
    # Copies without any feature are all equal.
    points = points[np.sort(np.unique(points.round(3), axis=0, return_index=True)[1])]
    found: list[tuple[int, NDArray[np.float32]]] = []
    for anchor in points[:N_ANCHORS]:
        away = points - anchor
        length = np.linalg.norm(away, axis=1, keepdims=True)
        away = (away / length.clip(1e-3)) * (length > 1e-3)
        support = (np.abs(away @ away.T) > 1 - 1e-5).sum(0)
        best = int(support.argmax())
        if support[best] >= MIN_SUPPORT:
            found.append((int(support[best]), away[best]))
    distinct: list[NDArray[np.float32]] = []
    for _, direction in sorted(found, key=lambda each: -each[0]):
        if all(abs(direction @ each) < 0.99 for each in distinct):
            distinct.append(direction)
    return np.array(distinct[:COLUMNS])


def correlations(columns: NDArray[np.float64], handles: NDArray[np.int64]) -> list[float]:
    """Return the best rank correlation of any estimated column with each true one. (p,)"""
    if not columns.any():
        return [0.0] * COLUMNS
    table = secret_table()
    full = table.notna().all(axis=1).to_numpy()
    truth = table[full].rank().to_numpy()
    estimated = pd.DataFrame(columns[handles[full]]).rank().to_numpy()
    both = np.corrcoef(truth.T, estimated.T)[:COLUMNS, COLUMNS:]
    return [float(each) for each in np.nan_to_num(np.abs(both)).max(1)]


if __name__ == "__main__":
    for settings in (NARROWEST, HONEST):
        for number in range(4):
            with TemporaryDirectory() as folder:
                attacker = attacked_service(Path(folder), bytes([number] * 32))
                found = read_columns(attacker, settings)
            print(
                f"{settings.net.hidden_dim} hidden units, secret {number}: rank correlation of the "
                f"columns: mean {np.mean(found):.2f}, largest {max(found):.2f}",
                flush=True,
            )
    for name, (settings, rows, updates) in LINEARIZING.items():
        for limits in (UNMEASURED, ""):
            for number in range(4):
                with TemporaryDirectory() as folder:
                    attacker = attacked_service(Path(folder), bytes([number] * 32), limits)
                    found, done = read_trained_columns(attacker, settings, rows, updates)
                print(
                    f"{name}, secret {number}, {'not measured' if limits else 'default limits'}: "
                    f"{done} updates, rank correlation of the columns: mean {np.mean(found):.2f}, "
                    f"largest {max(found):.2f}, {sum(each > 0.9 for each in found)} above 0.9",
                    flush=True,
                )
