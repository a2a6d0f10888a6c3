"""Federations on the digits and on Bank, one of whose parties sends poisoned values."""

import json
import os
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from torch import Tensor

from tests.federation.poisoned_values import ATTACKS, Attack, Poisoner
from tests.federation.split_helpers import InMemoryCheckpoints
from tests.options import resolved
from xvfl.config import LossConfig, NetConfig, PrivacyConfig, TableOptions, TrainConfig
from xvfl.data.encoder import TableEncoder
from xvfl.dataset.in_memory import to_party_table
from xvfl.federation.build import build_method, build_parties
from xvfl.federation.elastic import ElasticFederation
from xvfl.federation.endpoint import Endpoint, PartyRun
from xvfl.federation.membership import RunTerms
from xvfl.federation.party_monitor import AnomalyPolicy, PartyMonitor
from xvfl.federation.party_share import check_repeatability, check_validation
from xvfl.federation.party_worker import PartyWorker
from xvfl.federation.predict import logits, score
from xvfl.federation.remote_party import RemoteParty
from xvfl.federation.run_settings import RunSettings
from xvfl.methods import Method, method_spec
from xvfl.methods.members import member_seeds
from xvfl.primitives.rows import (
    PartyTable,
    Rows,
    align_rows,
    choose_full_threshold,
    observation_levels,
)
from xvfl.training.loop import Trainer
from xvfl.wire.in_process import InProcessTransport
from xvfl.wire.messages import Hello, Message
from xvfl_lab.datasets.physionet2012 import read_pack

BANK = Path("tabular") / "bank_full.parquet"
BANK_PARTIES = {
    "client": ["age", "job", "marital", "education", "default", "balance", "housing", "loan"],
    "campaign": ["contact", "day", "month", "campaign", "pdays", "previous", "poutcome"],
}
BANK_ROWS = 6000
PHYSIONET = Path("clinical") / "physionet2012_wide.parquet"
PHYSIONET_ROWS = 4000
NET = NetConfig(embedding_dim=64, hidden_dim=64, members=1)
NO_GRADIENTS = PrivacyConfig("no_gradients")
SENDS_GRADIENTS = PrivacyConfig("off")
LEAVE = "leave"
"""In place of an attack: exclude the party."""
MISSING = 0.3
"""Share of the rows in which a party misses half of its features."""


def digits_tables() -> tuple[dict[str, pd.DataFrame], Tensor]:
    """Split the images of the digits into a left and a right half."""
    x, y = load_digits(return_X_y=True)
    pixels = pd.DataFrame(x, columns=[f"p{i}" for i in range(64)])
    left = [f"p{i}" for i in range(64) if i % 8 < 4]
    return {"left": pixels[left], "right": pixels.drop(columns=left)}, torch.from_numpy(y).long()


def bank_tables() -> tuple[dict[str, pd.DataFrame], Tensor]:
    """Split 6,000 rows of Bank Marketing between two parties; skip the test without the data."""
    path = Path(os.environ.get("XVFL_DATA", "")) / BANK
    if not path.is_file():
        pytest.skip(f"needs {BANK} in the folder of XVFL_DATA")
    frame = pd.read_parquet(path).sample(BANK_ROWS, random_state=0).reset_index(drop=True)
    y = torch.tensor((frame["y"] == "yes").to_list()).long()
    return {name: frame[columns] for name, columns in BANK_PARTIES.items()}, y


def physionet_tables() -> tuple[dict[str, pd.DataFrame], Tensor]:
    """Split 4,000 stays of PhysioNet 2012 between two parties; skip the test without the data."""
    path = Path(os.environ.get("XVFL_DATA", "")) / PHYSIONET
    if not path.is_file():
        pytest.skip(f"needs {PHYSIONET} in the folder of XVFL_DATA")
    table = read_pack([path])
    frame = table.frame.sample(PHYSIONET_ROWS, random_state=0)
    y = torch.from_numpy(table.y[frame.index])
    features = {c: c.partition("__")[0] for c in frame.columns}
    frames = {
        name: frame[[c for c in frame.columns if features[c] in own]].reset_index(drop=True)
        for name, own in table.parties[2].items()
    }
    return frames, y


TABLES = {"digits": digits_tables, "bank": bank_tables, "physionet2012": physionet_tables}


def encode_tables(frames: dict[str, pd.DataFrame], seed: int = 0) -> dict[str, PartyTable]:
    """Encode each party's table, with features missing in some rows."""
    rng = torch.Generator().manual_seed(seed)
    tables = {}
    for name, frame in frames.items():
        some = (torch.rand(len(frame), 1, generator=rng) < MISSING).numpy()
        cells = (torch.rand(*frame.shape, generator=rng) < 0.5).numpy()
        frame = frame.astype(object).mask(some & cells).infer_objects()
        frame = frame.loc[:, frame.nunique() > 1]
        encoder = TableEncoder.fit(frame, TableOptions(), name)
        tables[name] = to_party_table(encoder.layout, encoder.encode(frame))
    return tables


@cache
def encoded(data: str, seed: int) -> tuple[dict[str, PartyTable], Tensor]:
    """Return the encoded tables of a data set, and its labels."""
    frames, y = TABLES[data]()
    return encode_tables(frames, seed), y


class PoisonedTransport(InProcessTransport):
    """A party that replaces its embeddings and completed embeddings once an attack is on."""

    def __init__(self, hello: Hello, handle: Callable[[bytes], bytes]) -> None:
        super().__init__(hello, handle)
        self.attack: Attack | None = None
        self.poisoner = Poisoner()

    def request(self, message: Message) -> "Future[Message]":
        poisoned: Future[Message] = Future()
        reply = super().request(message).result()
        poisoned.set_result(self.poisoner.reply(message, reply, self.attack))
        return poisoned


@dataclass
class PoisonedRun:
    """A federation with a monitor, and its rows."""

    federation: ElasticFederation
    method: Method
    trainer: Trainer
    transports: list[PoisonedTransport]
    validation: Rows
    test: Rows
    events: list[dict[str, Any]]

    def train(self, attack: str | None = None, start: int = 0, party: int = 1) -> "PoisonedRun":
        """Train; from a step on, one party sends poisoned values, or is excluded (`LEAVE`)."""
        excluded = self.federation.excluded

        def validate() -> float:
            nonlocal excluded
            check_validation(self.method, self.federation, self.validation)
            if self.federation.excluded != excluded:
                excluded = self.federation.excluded
                self.trainer.forget_best()
            return score(self.method, self.federation, self.validation)

        if attack is not None and start == 0:
            self.transports[party].attack = ATTACKS.get(attack)
        check_repeatability(self.method, self.federation, self.validation)
        steps = self.trainer.run(validate)
        while True:
            if self.trainer.progress.step == start and attack == LEAVE:
                self.federation.exclude(party, "for comparison")
            elif attack is not None and self.trainer.progress.step >= start:
                self.transports[party].attack = ATTACKS.get(attack)
            if next(steps, None) is None:
                break
        if self.federation.best_weights_agree:
            self.trainer.load_best()
            self.federation.flush()
        return self

    def accuracy(self) -> float:
        """Return the collaborative accuracy on the test rows that the first party observed."""
        out, y = self._test_logits()
        return float((out.argmax(1) == y).float().mean())

    def auroc(self) -> float:
        """Return the collaborative AUROC on these rows."""
        out, y = self._test_logits()
        scores = out.double().softmax(1)
        binary = scores.shape[1] == 2
        return float(roc_auc_score(y, scores[:, 1] if binary else scores, multi_class="ovr"))

    def _test_logits(self) -> tuple[Tensor, Tensor]:
        rows = self.test.take(self.test.seen[:, 0].nonzero().flatten())
        return logits(self.method, self.federation, rows, "collaborative", 0), rows.y

    def anomalies(self) -> list[dict[str, Any]]:
        """Return the logged anomalies."""
        return [event for event in self.events if event["event"] == "party_anomaly"]


def make_run(
    data: str,
    epochs: int,
    policy: AnomalyPolicy | None = "warn",
    method_name: str = "xvfl+",
    protection: PrivacyConfig = NO_GRADIENTS,
    seed: int = 0,
    net: NetConfig = NET,
    learning_rate: float = 5e-3,
) -> PoisonedRun:
    """Build a federation of two parties in this process; policy None is without a monitor."""
    tables, y = encoded(data, seed)
    train = TrainConfig(
        epochs=epochs, batch_size=64, patience=0, device="cpu", learning_rate=learning_rate
    )
    options = resolved(net, LossConfig(method=method_name), train, protection)
    net, loss, train = options.net, options.loss, options.train
    layouts = {name: table.layout for name, table in tables.items()}
    nets = build_parties(layouts, net, loss, [seed], privacy=protection)
    method = build_method(
        len(tables), int(y.max()) + 1, False, net, loss, [seed], privacy=protection
    )
    weight = loss.reconstruction_weight
    settings = RunSettings(method_name, net, train, weight, privacy=protection)
    terms = RunTerms(
        "run",
        json.dumps(asdict(settings)),
        net.embedding_dim * method_spec(method_name).branches,
        1,
        join_timeout=20,
        sends_gradients=protection.sends_gradients,
        members=net.members,
    )
    transports, levels = [], []
    for name, table in tables.items():
        worker = PartyWorker(name, nets[name], table, member_seeds([seed], net.members), weight)
        status = observation_levels(table.observed, choose_full_threshold(table.observed))
        hello = Hello(0, name, False, len(table), "columns", "session")
        end = Endpoint(
            hello,
            lambda settings, training, w=worker, s=status: PartyRun(w, s),  # type: ignore[misc]
            InMemoryCheckpoints(),
        )
        transports.append(PoisonedTransport(hello, end.handle))
        levels.append(status)
    events: list[dict[str, Any]] = []
    monitor = None if policy is None else PartyMonitor(policy, events.append)
    parties = [RemoteParty(name, line) for name, line in zip(tables, transports, strict=True)]
    federation = ElasticFederation(parties, terms, events.append, monitor)
    federation.wait_for(len(parties))
    rows = align_rows(torch.arange(len(y)).unsqueeze(1).expand(-1, len(tables)), levels, y)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    n_test, n_validation = len(rows) // 5, len(rows) // 6
    training = order[n_test + n_validation :]
    return PoisonedRun(
        federation,
        method,
        Trainer(federation, method, rows.take(training), train),
        transports,
        rows.take(order[n_test : n_test + n_validation]),
        rows.take(order[:n_test]),
        events,
    )
