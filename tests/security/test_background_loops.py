"""Threads that run for as long as a process survive every error, and log it."""

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from xvfl.federation.party_pool import PartyPool
from xvfl.federation.remote_party import RemoteParty
from xvfl.model.run_dir import RunDir
from xvfl.service.prediction.coordinator_prediction import CoordinatorPredictor
from xvfl.wire import codec
from xvfl.wire.in_process import InProcessTransport
from xvfl.wire.messages import Hello, OpenPrediction, PredictionOpened
from xvfl_serve.http.micro_batches import Answers, MicroBatcher

IDS = ("c1", "c2", "c3")


def hello(instance: str = "process", session: str = "") -> Hello:
    return Hello(0, instance, False, len(IDS), "", session, "prediction")


def wait_for(condition: Callable[[], object]) -> None:
    until = time.monotonic() + 60
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    assert condition()


def test_a_batch_with_a_wrong_answer_or_a_cancelled_request_does_not_end_the_thread() -> None:
    started, go = threading.Event(), threading.Event()

    def answer(rows: list[int], caller: str, deadline: float) -> Answers:
        started.set()
        assert go.wait(60)
        return [{"row": row} for row in rows if row != 13]

    batcher = MicroBatcher(answer, max_rows=5)
    first = batcher.submit([1], "a", 60)
    assert started.wait(60)
    cancelled, wrong = batcher.submit([2], "b", 60), batcher.submit([13], "c", 60)
    assert cancelled.cancel()
    assert not first.cancel(), "a request that is being answered cannot be cancelled"
    go.set()
    assert first.result(60) == [{"row": 1}]
    with pytest.raises(ValueError, match="shorter"):
        wrong.result(60)
    assert batcher.submit([3], "a", 60).result(60) == [{"row": 3}]
    batcher.close()


def test_a_party_joins_after_an_unexpected_error() -> None:
    def handle(frame: bytes) -> bytes:
        message = codec.decode(frame)
        assert isinstance(message, OpenPrediction)
        return codec.encode(PredictionOpened(message.request_id, 3))

    errors, events = [MemoryError("no memory"), KeyError("party")], list[dict[str, Any]]()

    def prepare(name: str, greeting: Hello) -> None:
        if errors:
            raise errors.pop()

    transport = InProcessTransport(hello(), handle)
    pool = PartyPool([RemoteParty("bank", transport)], {"bank": "run"}, prepare, events.append, 1.0)
    try:
        wait_for(lambda: pool.parties[0].available)
    finally:
        pool.close()
    assert [each["event"] for each in events] == 2 * ["internal_error", "party_left_out"] + [
        "party_available"
    ]
    assert "KeyError" in events[0]["traceback"]


class Coordinator:
    """The predictor of a coordinator with one party, bank, that is not connected."""

    def __init__(self, folder: Path) -> None:
        self.events: list[Any] = []
        settings = SimpleNamespace(min_parties=1, deadline=2.0)
        config: Any = SimpleNamespace(
            prediction=settings,
            matching=SimpleNamespace(rule="exact"),
            state_dir=str(folder),
            signing_key=None,
        )
        model: Any = SimpleNamespace(names=("bank",), run="run", encoders={})
        run_dir = RunDir(folder).create()
        self.index = folder / "releases.json"
        self.predictor = CoordinatorPredictor(config, model, IDS, run_dir, self.events.append)
        self.predictor._transports = {"bank": InProcessTransport(hello(), bytes)}


def test_releases_that_cannot_be_read_do_not_end_the_coordinator(tmp_path: Path) -> None:
    coordinator = Coordinator(tmp_path)
    for text in ('{"bank": ', '{"bank": {"number": 1}}', "[1]"):
        coordinator.index.write_text(text)
        for _ in range(3):
            coordinator.predictor.offer_releases()
    assert [each["event"] for each in coordinator.events] == 3 * ["releases_not_offered"]
    coordinator.index.write_text(json.dumps({}))
    coordinator.predictor.offer_releases()
    coordinator.index.write_text("[1]")
    coordinator.predictor.offer_releases()
    assert len(coordinator.events) == 4, "an error that occurs again is logged again"
