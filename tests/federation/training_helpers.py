"""Training over transports that can stop answering, on two parties of the digits."""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import asdict, replace

import torch
from torch import Tensor

from tests.federation.split_helpers import InMemoryCheckpoints
from tests.options import resolved
from tests.problems import CLASSES, SEED, split_digits
from xvfl.config import NetConfig, TrainConfig
from xvfl.federation.begin_run import RunTerms, begin_run
from xvfl.federation.endpoint import Endpoint, PartyRun
from xvfl.federation.party_worker import PartyWorker
from xvfl.federation.remote_party import RemoteParty
from xvfl.federation.run_settings import RunSettings
from xvfl.federation.split import SplitFederation
from xvfl.methods import Method
from xvfl.methods.build import build_method, build_parties
from xvfl.nets.party_net import PartyNet
from xvfl.primitives.layout import any_image
from xvfl.primitives.rows import Rows
from xvfl.primitives.task import Classification
from xvfl.wire.in_process import InProcessTransport
from xvfl.wire.messages import ErrorReply, Hello, Message
from xvfl.wire.transport import Transport

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
        return parties, build_method(
            len(layouts), Classification(range(CLASSES)), any_image(layouts), NET, LOSS, [SEED]
        )


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


def run_terms(train: TrainConfig) -> RunTerms:
    settings = RunSettings("xvfl+", NET, train, LOSS.reconstruction_weight)
    return RunTerms("run", json.dumps(asdict(settings)), join_timeout=20)


def start(transports: Sequence[Transport], train: TrainConfig) -> SplitFederation:
    """Let both parties begin a run."""
    parties = [RemoteParty(*each) for each in zip(NAMES, transports, strict=True)]
    for party in parties:
        party.timeout = 1.0
    federation = SplitFederation(parties, 8)
    begin_run(federation, run_terms(train))
    return federation


class FlakyTransport(InProcessTransport):
    """A transport that can lose requests (`before`) or answers (`after`)."""

    def __init__(self, end: Endpoint) -> None:
        super().__init__(end.hello, end.handle)
        self.end = end
        self.silent: str | None = None
        self.fails: Callable[[Message], bool] = lambda message: False
        """Messages that the party refuses."""

    def hello(self) -> Hello | None:
        return None if self.silent else self.end.hello

    def restart(self, worker: PartyWorker, store: InMemoryCheckpoints) -> None:
        """Replace the party's process; its checkpoints remain."""
        self.end = make_endpoint(worker, store, instance_id="second")
        self._handle = self.end.handle

    def request(self, message: Message) -> "Future[Message]":
        if self.silent == "before":
            return Future()
        if self.fails(message):
            refused: Future[Message] = Future()
            refused.set_result(ErrorReply(message.request_id, "WireError", "not today"))
            return refused
        answer = super().request(message)
        return Future() if self.silent else answer
