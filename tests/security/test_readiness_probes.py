"""Requests for `/v2/health/ready`, which need no token, do not hold up predictions."""

import threading
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch

from xvfl.config import TableOptions
from xvfl.model.run_dir import RunDir
from xvfl.service.config import MatchingConfig
from xvfl.service.party_inputs import PartyInputs
from xvfl.service.prediction.assisted_prediction import ASSIST_SHARE, AssistedPredictor
from xvfl.wire.messages import Assist, Assistance, Message
from xvfl_serve.errors import UnavailableError

MODEL = SimpleNamespace(task=SimpleNamespace(n_outputs=2))
OPENED: Any = SimpleNamespace(model=MODEL)


class Coordinator:
    """Answers no request before `answering` is set."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.received, self.answering = list[Assist](), threading.Event()
        self.called = threading.Event()
        monkeypatch.setattr(AssistedPredictor, "_open", lambda _: OPENED)
        frame, handles = pd.DataFrame({"age": [1.0]}, ["c1"]), torch.tensor([0])
        matching = MatchingConfig("exact")
        inputs = PartyInputs("bank", frame, TableOptions(), RunDir(folder), matching)
        self.predictor = AssistedPredictor(inputs, lambda: handles, self.call, lambda _: None, 2)

    def call(self, message: Message, seconds: float) -> Message:
        assert isinstance(message, Assist)
        self.received.append(message)
        self.called.set()
        assert self.answering.wait(60)
        flags = torch.zeros(len(message.handles), 1, dtype=torch.bool)
        values = torch.zeros(len(message.handles), 2, dtype=torch.float64)
        return Assistance(message.request_id, values, flags, flags, ("shop",), ())

    def predict(self, deadline: float) -> dict[str, str]:
        """Request help with a row; return who was unreachable, and why."""
        rows, incomplete = torch.tensor([0]), torch.tensor([True])
        helped = self.predictor._request_assistance(OPENED, rows, incomplete, "caller", deadline)
        return dict(helped.unreachable)

    def probe(self, count: int) -> list[threading.Thread]:
        """Ask several times at once whether the party is ready, and wait for the first probe."""
        together = threading.Barrier(count)

        def ask() -> None:
            together.wait(60)
            with suppress(UnavailableError):
                self.predictor.check_ready()

        threads = [threading.Thread(target=ask, daemon=True) for _ in range(count)]
        for each in threads:
            each.start()
        assert self.called.wait(60)
        return threads


@pytest.fixture
def coordinator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Coordinator:
    return Coordinator(tmp_path, monkeypatch)


def test_requests_share_one_probe(coordinator: Coordinator) -> None:
    threads = coordinator.probe(8)
    time.sleep(0.1)
    coordinator.answering.set()
    for each in threads:
        each.join(60)
    assert len(coordinator.received) == 1


def test_a_prediction_waits_for_a_probe_until_its_deadline(coordinator: Coordinator) -> None:
    probes, unreachable = coordinator.probe(1), list[dict[str, str]]()
    deadline = time.monotonic() + 0.1
    prediction = threading.Thread(
        target=lambda: unreachable.append(coordinator.predict(deadline)), daemon=True
    )
    prediction.start()
    prediction.join(20)
    waiting = prediction.is_alive()
    coordinator.answering.set()
    prediction.join(60)
    probes[0].join(60)
    assert not waiting, "it waits although its deadline has passed"
    assert "coordinator" in unreachable[0] and len(coordinator.received) == 1


def test_the_coordinator_gets_the_time_that_is_left(coordinator: Coordinator) -> None:
    probes, deadline = coordinator.probe(1), time.monotonic() + 30
    prediction = threading.Thread(target=lambda: coordinator.predict(deadline), daemon=True)
    prediction.start()
    time.sleep(0.5)
    left = deadline - time.monotonic()
    coordinator.answering.set()
    prediction.join(60)
    probes[0].join(60)
    assert coordinator.received[1].seconds <= ASSIST_SHARE * left
