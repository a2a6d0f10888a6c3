"""Training over transports: the fused run's weights, faults on the way, checkpoints."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.federation.elastic_helpers import (
    NAMES,
    ROWS,
    FlakyTransport,
    copy_weights,
    make_endpoint,
    make_roster,
    make_workers,
    run_terms,
    train_config,
)
from tests.federation.split_helpers import InMemoryCheckpoints
from tests.wire.transport_helpers import open_transports
from xvfl.config import TrainConfig
from xvfl.errors import RunError
from xvfl.federation.elastic import ElasticFederation
from xvfl.federation.endpoint import PartyRun
from xvfl.federation.fused import FusedFederation
from xvfl.federation.predict import score
from xvfl.federation.remote_party import AdaptiveTimeout, RemoteParty
from xvfl.training.loop import Trainer

pytestmark = pytest.mark.usefixtures("limited_threads")


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
    pytest.param("page", "memory", torch.float64, 20, 1e-12, marks=pytest.mark.slow),
    pytest.param("adamw", "grpc", torch.float64, 20, 1e-12, marks=pytest.mark.slow),
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
        roster = ElasticFederation(
            [RemoteParty(*each) for each in zip(NAMES, found, strict=True)], run_terms(train)
        )
        trainer = Trainer(roster, method, rows, train)
        for _ in trainer.run(lambda: score(method, roster, rows)):
            pass
        trainer.load_best()
        roster.flush()
        assert trainer.progress.step == 10 * epochs
    pairs = zip(copy_weights(made, method), expected, strict=True)
    assert max(float((ours - theirs).abs().max()) for ours, theirs in pairs) <= tolerance


@pytest.mark.parametrize("silent", ["before", "after"])
@pytest.mark.parametrize("optimizer", ["adamw", "page"])
def test_a_late_party_leaves_and_comes_back_and_no_update_is_made_twice(
    silent: str, optimizer: str
) -> None:
    train = train_config(optimizer, epochs=2)
    roster, trainer, flaky, events, _ = make_roster(train)
    steps = trainer.run(lambda: 0.0)
    for _ in range(4):
        next(steps)
    flaky[1].silent = silent
    for _ in range(3):
        next(steps)
        assert roster.present == (0,)
    flaky[1].silent = None
    for _ in steps:
        pass
    roster.flush()
    assert trainer.progress.step == 20 and roster.present == (0, 1)
    assert [e["event"] for e in events] == [
        "party_joined",
        "party_joined",
        "party_left",
        "party_joined",
    ]
    left, back = events[2], events[3]
    assert left["party"] == back["party"] == "p1" and left["step"] == 4
    assert back["lost_steps"][0] == 4 and back["step"] == 7
    for line in flaky:
        numbers = [number for _, number in line.heard]
        assert numbers == sorted(set(numbers))
    first, last = back["lost_updates"]
    assert not {n for _, n in flaky[1].heard} & set(range(first, last + 1))
    assert {n for _, n in flaky[0].heard} == set(range(1, roster.counters.update + 1))


def test_a_killed_party_comes_back_from_its_own_checkpoint() -> None:
    train = train_config("adamw", epochs=2)
    roster, trainer, flaky, events, stores = make_roster(train)
    steps = trainer.run(lambda: 0.0)
    for step in range(8):
        next(steps)
        if step == 4:
            roster.flush(save=trainer.progress.step)
    made, *_ = make_workers()
    flaky[1].end = make_endpoint(made[1], stores[1], instance_id="second")
    flaky[1]._handle = flaky[1].end.handle
    for _ in steps:
        pass
    joined = [e for e in events if e["event"] == "party_joined"]
    assert joined[-1]["from_checkpoint"] == 5 and joined[-1]["lost_steps"] == [5, 7]
    assert roster.fault_counts.lost_updates == {"p0": 0, "p1": joined[-1]["lost_updates"][1] - 5}
    assert trainer.progress.step == 20


def test_a_party_that_answers_nan_is_kept_out_and_the_others_go_on() -> None:
    train = train_config("adamw", epochs=1)
    roster, trainer, flaky, events, _ = make_roster(train)
    steps = trainer.run(lambda: 0.0)
    next(steps)
    roster.flush()
    with torch.no_grad():
        next(iter(flaky[1].end.worker.net.parameters())).fill_(torch.nan)
    for _ in steps:
        pass
    assert trainer.progress.step == 10 and roster.present == (0,)
    why = next(e["reason"] for e in events if e["event"] == "party_excluded")
    assert "'p1' sent an invalid reply: embeddings: expected finite numbers" in why
    assert flaky[1].end.end_reason == f"excluded: {why}"


@pytest.mark.parametrize(
    ("row_status", "words"),
    [
        (torch.ones(ROWS - 1), "expected the status of the 240 matched rows, got 239"),
        (torch.ones(0), "expected the status of the 240 matched rows, got 0"),
        (torch.ones(ROWS, 1), r"expected row status \(n,\) uint8 of 0, 1 or 2, got torch.uint8 "),
        (torch.full((ROWS,), 3), r"expected row status \(n,\) uint8 of 0, 1 or 2"),
    ],
)
def test_holdings_of_other_rows_than_matched_are_refused(row_status: Tensor, words: str) -> None:
    made, *_ = make_workers()
    ends = [make_endpoint(side, InMemoryCheckpoints()) for side in made]
    ends[1]._start_run = lambda s, t: PartyRun(made[1], row_status.to(torch.uint8))
    events: list[dict[str, Any]] = []
    peers = [RemoteParty(name, FlakyTransport(end)) for name, end in zip(NAMES, ends, strict=True)]
    agreed = replace(run_terms(train_config("adamw", epochs=1)), rows=dict.fromkeys(NAMES, ROWS))
    roster = ElasticFederation(peers, agreed, events.append)
    with pytest.raises(RunError, match=words):
        roster.wait_for(2)
    assert [e["party"] for e in events if e["event"] == "party_excluded"] == ["p1"]
    assert re.search(words, ends[1].end_reason or "")


def test_too_few_parties_end_the_run_with_a_line() -> None:
    _, trainer, flaky, _, _ = make_roster(train_config("adamw", epochs=1), minimum=2, patience=0.3)
    steps = trainer.run(lambda: 0.0)
    next(steps)
    flaky[0].silent = "before"
    with pytest.raises(RunError, match="expected 2 parties, but after 0 s these are offline: p0"):
        next(steps)


def test_changed_rows_are_refused() -> None:
    train = train_config("adamw", epochs=1)
    _, trainer, flaky, events, stores = make_roster(train)
    next(trainer.run(lambda: 0.0))
    made, *_ = make_workers()
    other = make_endpoint(made[1], stores[1], instance_id="second")
    other._start_run = lambda s, t: PartyRun(made[1], torch.ones(ROWS, dtype=torch.uint8))
    flaky[1].end, flaky[1]._handle = other, other.handle
    for _ in trainer.run(lambda: 0.0):
        pass
    assert any("its rows changed" in e.get("reason", "") for e in events)


def test_a_coordinator_started_again_goes_on_to_the_same_weights() -> None:
    train = train_config("adamw", epochs=2)
    roster, trainer, flaky, _, _ = make_roster(train)
    for _ in trainer.run(lambda: 0.0):
        pass
    roster.flush()
    expected = copy_weights([line.end.worker for line in flaky], trainer.method)

    roster, trainer, flaky, _, _ = make_roster(train)
    steps = trainer.run(lambda: 0.0)
    for _ in range(7):
        next(steps)
    roster.flush(save=7)
    tensors, progress = trainer.state()
    kept = {name: value.clone() for name, value in tensors.items()}
    update = roster.counters.update
    for _ in range(5):
        next(steps)

    _, method, rows = make_workers()
    events: list[dict[str, Any]] = []
    peers = [RemoteParty(name, line) for name, line in zip(NAMES, flaky, strict=True)]
    roster = ElasticFederation(peers, run_terms(train, 1), events.append)
    roster.step, roster.counters.update = 7, update
    roster.wait_for(2)
    trainer = Trainer(roster, method, rows, train)
    trainer.restore(kept, progress)
    for _ in trainer.run(lambda: 0.0):
        pass
    roster.flush()
    assert all(e["lost_updates"] == [] and e["from_checkpoint"] == 7 for e in events)
    ours = copy_weights([line.end.worker for line in flaky], method)
    assert all(torch.equal(a, b) for a, b in zip(ours, expected, strict=True))


def test_a_party_that_answers_just_in_time_stretches_its_deadline_to_the_first_at_most() -> None:
    deadline = AdaptiveTimeout(minimum=5, factor=10, maximum=60)
    deadline.observe(1.5)
    for _ in range(50):
        deadline.observe(0.95 * deadline.seconds)
        assert deadline.seconds <= 60
    assert deadline.seconds == 60
    assert AdaptiveTimeout(minimum=5, factor=10, maximum=1).seconds == 5


def test_deadlines_follow_what_a_party_needs() -> None:
    deadline = AdaptiveTimeout(minimum=1, factor=10, maximum=60)
    assert deadline.seconds == 60
    for _ in range(50):
        deadline.observe(0.01)
    assert deadline.seconds == 1
    for _ in range(20):
        deadline.observe(0.5)
    assert 4 < deadline.seconds <= 5
    for _ in range(400):
        deadline.observe(0.01)
    assert deadline.seconds == 1
