"""Training over transports: the fused run's weights, faults on the way, checkpoints."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.federation.split_helpers import InMemoryCheckpoints
from tests.federation.training_helpers import (
    NAMES,
    ROWS,
    FlakyTransport,
    copy_weights,
    make_endpoint,
    make_workers,
    run_terms,
    start,
    train_config,
)
from tests.wire.transport_helpers import open_transports
from xvfl.config import TrainConfig
from xvfl.errors import PartyError, RunError
from xvfl.federation.begin_run import begin_run
from xvfl.federation.endpoint import PartyRun
from xvfl.federation.fused import FusedFederation
from xvfl.federation.remote_party import RemoteParty
from xvfl.federation.split import SplitFederation
from xvfl.training.loop import Trainer
from xvfl.training.predict import score
from xvfl.wire.messages import Backward, Begin, Complete, Embed, Flush

pytestmark = pytest.mark.usefixtures("limited_threads")
SAVED = 4
"""Step of the checkpoint."""


def fused(train: TrainConfig, dtype: torch.dtype) -> list[Tensor]:
    made, method, rows = make_workers(dtype)
    federation = FusedFederation(made)
    trainer = Trainer(federation, method, rows, train)
    for _ in trainer.run(lambda: score(method, federation, rows)):
        pass
    trainer.load_best()
    return copy_weights(made, method)


CASES = [
    ("page", "memory", torch.float64, 3, 1e-12),
    ("adamw", "grpc", torch.float64, 3, 1e-12),
    ("sgd", "grpc", torch.float32, 2, 1e-5),
    pytest.param("page", "memory", torch.float64, 8, 1e-12, marks=pytest.mark.slow),
    pytest.param("adamw", "grpc", torch.float64, 8, 1e-12, marks=pytest.mark.slow),
]
"""In single precision, long runs drift apart once rounding flips a ReLU; when it does depends on
the processor."""


@pytest.mark.parametrize(("optimizer", "kind", "dtype", "epochs", "tolerance"), CASES)
def test_training_over_a_transport_ends_in_the_fused_weights(
    optimizer: str, kind: str, dtype: torch.dtype, epochs: int, tolerance: float, authority: Path
) -> None:
    train = train_config(optimizer, epochs)
    expected = fused(train, dtype)
    made, method, rows = make_workers(dtype)
    ends = [make_endpoint(side, InMemoryCheckpoints()) for side in made]
    with open_transports(kind, NAMES, ends, authority) as found:
        federation = start(found, train)
        trainer = Trainer(federation, method, rows, train)
        for _ in trainer.run(lambda: score(method, federation, rows)):
            pass
        trainer.load_best()
        federation.flush()
        assert trainer.progress.step == 10 * epochs
    pairs = zip(copy_weights(made, method), expected, strict=True)
    assert max(float((ours - theirs).abs().max()) for ours, theirs in pairs) <= tolerance


@dataclass
class Training:
    """A run of two parties over transports that can fail."""

    train: TrainConfig
    events: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        workers, method, rows = make_workers()
        self.stores = [InMemoryCheckpoints(), InMemoryCheckpoints()]
        ends = zip(workers, self.stores, strict=True)
        self.lines = [FlakyTransport(make_endpoint(*each)) for each in ends]
        self.federation = start(self.lines, self.train)
        self.trainer = Trainer(self.federation, method, rows, self.train)
        self.steps = self.trainer.run(lambda: 0.0)

    def save(self) -> None:
        """Save a checkpoint on all sides."""
        self.federation.flush(save=self.trainer.progress.step)
        tensors, self.progress = self.trainer.state()
        self.tensors = {name: value.clone() for name, value in tensors.items()}
        self.update = self.federation.counters.update

    def start_again(self) -> None:
        """Continue from the checkpoint, with a coordinator that is started again."""
        _, method, rows = make_workers()
        parties = [RemoteParty(*each) for each in zip(NAMES, self.lines, strict=True)]
        self.federation = SplitFederation(parties, 8)
        terms, step = run_terms(self.train), self.progress["step"]
        begin_run(self.federation, terms, step, self.update, self.events.append)
        self.trainer = Trainer(self.federation, method, rows, self.train)
        self.trainer.restore(self.tensors, self.progress)
        self.steps = self.trainer.run(lambda: 0.0)

    def weights(self) -> list[Tensor]:
        """Finish the run; return all weights."""
        for _ in self.steps:
            pass
        self.federation.flush()
        return copy_weights([line.end.worker for line in self.lines], self.trainer.method)


def silence(silent: str) -> Callable[[Training], None]:
    def fail(run: Training) -> None:
        run.lines[1].silent = silent

    return fail


def refuse(kind: type[Any]) -> Callable[[Training], None]:
    def fail(run: Training) -> None:
        once = iter([True])
        run.lines[1].fails = lambda message: isinstance(message, kind) and next(once, False)

    return fail


def restart(run: Training) -> None:
    workers, *_ = make_workers()
    run.lines[1].restart(workers[1], run.stores[1])


def break_weights(run: Training) -> None:
    run.federation.flush()
    with torch.no_grad():
        next(iter(run.lines[1].end.worker.net.parameters())).fill_(torch.nan)


FAULTS: dict[str, tuple[Callable[[Training], None], str]] = {
    "a lost request": (silence("before"), "no reply in time from p1"),
    "a lost reply": (silence("after"), "no reply in time from p1"),
    "a restart": (restart, "no reply in time from p1"),
    "an embedding refused": (refuse(Embed), "'p1' rejected the request: not today"),
    "a completion refused": (refuse(Complete), "'p1' rejected the request: not today"),
    "a gradient refused": (refuse(Backward), "'p1' rejected the request: not today"),
    "NaN": (break_weights, "'p1' sent an invalid reply: embeddings: expected finite numbers"),
}


@cache
def undisturbed(optimizer: str) -> list[Tensor]:
    """Return the weights of a run without a fault."""
    return Training(train_config(optimizer, epochs=1)).weights()


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [*((name, "adamw") for name in FAULTS), ("a restart", "page"), ("a gradient refused", "page")],
)
def test_a_run_started_again_after_a_fault_ends_in_the_same_weights(
    name: str, optimizer: str
) -> None:
    train, expected = train_config(optimizer, epochs=1), undisturbed(optimizer)
    run, (fail, words) = Training(train), FAULTS[name]
    for _ in range(SAVED):
        next(run.steps)
    run.save()
    for _ in range(2):
        next(run.steps)
    fail(run)
    with pytest.raises(PartyError, match=words) as caught:
        run.weights()
    assert caught.value.parties == ("p1",)
    run.lines[1].silent = None
    run.start_again()
    assert [e["event"] for e in run.events] == ["party_joined"] * 2
    ours = run.weights()
    assert run.trainer.progress.step == 10
    assert all(torch.equal(a, b) for a, b in zip(ours, expected, strict=True))


def test_a_refused_checkpoint_is_a_fault() -> None:
    run = Training(train_config("adamw", epochs=1))
    next(run.steps)
    refuse(Flush)(run)
    with pytest.raises(PartyError, match="not today"):
        run.save()


def test_two_that_fail_together_are_both_named() -> None:
    run = Training(train_config("adamw", epochs=1))
    next(run.steps)
    run.lines[0].silent = "before"
    refuse(Embed)(run)
    with pytest.raises(PartyError, match="not today; no reply in time from p0") as caught:
        next(run.steps)
    assert {each.parties[0]: each.fault for each in caught.value.each} == {
        "p0": "away",
        "p1": "refused",
    }


def test_a_party_without_the_checkpoint_cannot_resume() -> None:
    run = Training(train_config("adamw", epochs=1))
    next(run.steps)
    run.save()
    run.stores[1].saved.clear()
    with pytest.raises(RunError, match=r"'p1': Ready: expected the checkpoint of step 1 .*step 0"):
        run.start_again()


@pytest.mark.parametrize(
    ("row_status", "words"),
    [
        (torch.ones(ROWS - 1), "expected the status of the 240 matched rows, got 239"),
        (torch.ones(0), "expected the status of the 240 matched rows, got 0"),
        (torch.ones(ROWS, 1), r"expected row status \(n,\) uint8 of 0, 1 or 2, got torch.uint8 "),
        (torch.full((ROWS,), 3), r"expected row status \(n,\) uint8 of 0, 1 or 2"),
    ],
)
def test_the_status_of_other_rows_than_matched_is_refused(row_status: Tensor, words: str) -> None:
    workers, *_ = make_workers()
    ends = [make_endpoint(worker, InMemoryCheckpoints()) for worker in workers]
    ends[1]._start_run = lambda s, t: PartyRun(workers[1], row_status.to(torch.uint8))
    parties = [RemoteParty(n, FlakyTransport(end)) for n, end in zip(NAMES, ends, strict=True)]
    terms = replace(run_terms(train_config("adamw", epochs=1)), rows=dict.fromkeys(NAMES, ROWS))
    with pytest.raises(RunError, match=words):
        begin_run(SplitFederation(parties, 8), terms)


def test_parties_that_are_offline_or_refuse_to_begin_end_the_run_with_a_line() -> None:
    workers, *_ = make_workers()
    lines = [FlakyTransport(make_endpoint(each, InMemoryCheckpoints())) for each in workers]
    federation = SplitFederation([RemoteParty(*e) for e in zip(NAMES, lines, strict=True)], 8)
    terms = replace(run_terms(train_config("adamw", epochs=1)), join_timeout=0.1)
    lines[0].silent = "before"
    with pytest.raises(RunError, match="expected all parties, but after 0 s these are offline: p0"):
        begin_run(federation, terms)
    lines[0].silent = None
    lines[1].fails = lambda message: isinstance(message, Begin)
    with pytest.raises(RunError, match="'p1' rejected the request: not today; fix it and resume"):
        begin_run(federation, terms)
