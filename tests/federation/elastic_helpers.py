"""Elastic federations over transports that can stop answering, on two parties of the digits."""

import json
from concurrent.futures import Future
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor

from tests.federation.split_helpers import InMemoryCheckpoints
from tests.options import resolved
from tests.problems import CLASSES, SEED, split_digits
from xvfl.config import NetConfig, TrainConfig
from xvfl.federation.build import build_method, build_parties
from xvfl.federation.elastic import ElasticFederation
from xvfl.federation.endpoint import Endpoint, PartyRun
from xvfl.federation.membership import RunTerms
from xvfl.federation.party_worker import PartyWorker
from xvfl.federation.remote_party import AdaptiveTimeout, RemoteParty
from xvfl.federation.run_settings import RunSettings
from xvfl.methods import Method
from xvfl.nets.party_net import PartyNet
from xvfl.primitives.layout import any_image
from xvfl.primitives.rows import Rows
from xvfl.training.loop import Trainer
from xvfl.wire.in_process import InProcessTransport
from xvfl.wire.messages import Begin, Hello, Message

OPTIONS, ROWS = resolved(NetConfig(embedding_dim=8, hidden_dim=16, members=1)), 240
NET, LOSS = OPTIONS.net, OPTIONS.loss
NAMES = ("p0", "p1")


def train_config(optimizer: str, epochs: int) -> TrainConfig:
    rate = {"adamw": 2e-3, "sgd": 3e-3, "page": 2e-2}[optimizer]
    return TrainConfig(
        epochs=epochs,
        completion_interval=1,
        batch_size=24,
        optimizer=optimizer,
        learning_rate=rate,
        patience=0,
        random_state=SEED,  # type: ignore[arg-type]
    )


def make_nets() -> tuple[dict[str, PartyNet], Method]:
    """Build the same nets every time."""
    tables, _ = split_digits(ROWS)
    layouts = {name: table.layout for name, table in zip(NAMES, tables.values(), strict=True)}
    with torch.random.fork_rng(devices=[]):
        parties = build_parties(layouts, NET, LOSS, [SEED])
        return parties, build_method(len(layouts), CLASSES, any_image(layouts), NET, LOSS, [SEED])


def make_workers(dtype: torch.dtype = torch.float32) -> tuple[list[PartyWorker], Method, Rows]:
    """Build the parties' workers on the digits, with a dtype."""
    tables, rows = split_digits(ROWS)
    parties, method = make_nets()
    method.heads.to(dtype)
    weight = LOSS.reconstruction_weight
    workers = [
        PartyWorker(
            name,
            parties[name].to(dtype),
            replace(table, values=table.values.to(dtype)),
            [SEED],
            weight,
        )
        for name, table in zip(NAMES, tables.values(), strict=True)
    ]
    return workers, method, replace(rows, weight=rows.weight.to(dtype))


def copy_weights(workers: list[PartyWorker], method: Method) -> list[Tensor]:
    holders = [*(worker.net for worker in workers), method.heads]
    return [value.detach().clone() for net in holders for value in net.parameters()]


def make_endpoint(
    worker: PartyWorker, store: InMemoryCheckpoints, instance_id: str = "first"
) -> Endpoint:
    count = len(worker.table)
    row_status = torch.full((count,), 2, dtype=torch.uint8)
    hello = Hello(0, f"{worker.name}-{instance_id}", False, count, "columns", "session")
    return Endpoint(hello, lambda settings, training: PartyRun(worker, row_status), store)


def run_terms(train: TrainConfig, minimum: int = 2) -> RunTerms:
    settings = RunSettings("xvfl+", NET, train, LOSS.reconstruction_weight)
    return RunTerms("run", json.dumps(asdict(settings)), 8, minimum, join_timeout=20)


class FlakyTransport(InProcessTransport):
    """A transport that can lose requests (`before`) or answers (`after`)."""

    def __init__(self, end: Endpoint) -> None:
        super().__init__(end.hello, end.handle)
        self.end = end
        self.silent: str | None = None
        self.heard: list[tuple[int, int]] = []
        """(request_id, number) of every update that reached the party."""

    def hello(self) -> Hello | None:
        return None if self.silent else self.end.hello

    def request(self, message: Message) -> "Future[Message]":
        if self.silent == "before":
            return Future()
        before = self.end.last_update
        answer = super().request(message)
        if self.end.last_update != before and not isinstance(message, Begin):
            self.heard += [(message.request_id, each.number) for each in message.instructions]  # type: ignore[union-attr]
        return Future() if self.silent else answer


def make_roster(
    train: TrainConfig, minimum: int = 1, patience: float = 20
) -> tuple[
    ElasticFederation,
    Trainer,
    list[FlakyTransport],
    list[dict[str, Any]],
    list[InMemoryCheckpoints],
]:
    """Build a roster over flaky lines, with short deadlines."""
    workers, method, rows = make_workers()
    stores = [InMemoryCheckpoints(), InMemoryCheckpoints()]
    flaky = [
        FlakyTransport(make_endpoint(worker, store))
        for worker, store in zip(workers, stores, strict=True)
    ]
    events: list[dict[str, Any]] = []
    peers = [
        RemoteParty(name, line, AdaptiveTimeout(0.2, 10, 5))
        for name, line in zip(NAMES, flaky, strict=True)
    ]
    roster = ElasticFederation(
        peers, replace(run_terms(train, minimum), join_timeout=patience), events.append
    )
    roster.wait_for(2)
    return roster, Trainer(roster, method, rows, train), flaky, events, stores
