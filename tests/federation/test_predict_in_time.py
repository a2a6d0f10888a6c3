"""Predictions with the parties that answer in time equal the fused prediction of these parties."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.federation.split_helpers import make_federation, make_small_method
from tests.problems import D, Problem
from xvfl.federation.party_pool import NO_ANSWER, NOT_CONNECTED, REJECTED, PartyPool
from xvfl.federation.predict_in_time import (
    EMBED_SHARE,
    TimelyBatch,
    embed_in_time,
    predict_in_time,
)
from xvfl.federation.prediction_endpoint import PredictionEndpoint, PredictionRows
from xvfl.federation.prediction_ledger import PredictionLedger, PredictionLimits
from xvfl.federation.remote_party import RemoteParty
from xvfl.methods.base import Method
from xvfl.methods.pooling import prediction_views, without_completion
from xvfl.wire.in_process import InProcessTransport
from xvfl.wire.messages import Complete, EmbedRows, Hello, Message

WIDTHS = (D, D, D)
DEADLINE_S = 2.0


@dataclass
class SilentTransport:
    """Does not answer the requests for which `silent` is true; counts requests by type."""

    inner: InProcessTransport
    silent: Callable[[Message, int], bool] = lambda message, number: False
    counts: dict[type[Any], int] = field(default_factory=dict)
    open: bool = False
    late: "tuple[Message, Future[Message]] | None" = None
    """The last request without an answer."""

    def hello(self) -> Hello | None:
        return None if self.open else self.inner.hello()

    def request(self, message: Message) -> "Future[Message]":
        number = self.counts[type(message)] = self.counts.get(type(message), 0) + 1
        if self.silent(message, number):
            self.open, self.late = True, (message, Future())
            return self.late[1]
        return self.inner.request(message)

    def reply_late(self) -> None:
        """Answer the last request without an answer."""
        assert self.late is not None
        message, reply = self.late
        self.open, self.late = False, None
        reply.set_result(self.inner.request(message).result())

    def traffic(self) -> tuple[int, int]:
        return self.inner.traffic()


@dataclass
class Federation:
    """Three parties behind prediction endpoints in this process."""

    problem: Problem
    method: Method
    pool: PartyPool
    transports: list[SilentTransport]
    events: list[dict[str, Any]]

    def predict(
        self, caller: str = "caller", seconds: float = DEADLINE_S
    ) -> tuple[torch.Tensor, TimelyBatch, bool]:
        deadline = time.monotonic() + seconds
        views = prediction_views(self.method)
        with torch.no_grad():
            batch = embed_in_time(
                self.pool, self.problem.rows.handles, caller, views, WIDTHS, deadline
            )
            return predict_in_time(self.pool, self.method, batch, 1, deadline)

    def fused(self, *places: int, completing: bool = True) -> torch.Tensor:
        """Predict with some parties in one process."""
        federation = self.problem.federation().select_parties(places)
        federation.train(False)
        method = self.method.select_parties(places)
        if not completing:
            method = without_completion(method) or method
        rows = self.problem.rows.select_parties(places)
        with torch.no_grad():
            return method.logits(federation, rows, "collaborative", 0)


@contextmanager
def federation(folder: Path, limits: PredictionLimits | None = None) -> Iterator[Federation]:
    problem, events = make_federation(3, torch.float32), list[dict[str, Any]]()
    transports = []
    for i, (name, worker) in enumerate(
        zip(problem.names, problem.federation().workers, strict=True)
    ):
        (folder / name).mkdir()
        handles, rows = problem.rows.handles[:, i], problem.rows
        levels = torch.zeros(len(worker.table), dtype=torch.uint8)
        held = handles >= 0
        levels[handles[held]] = (rows.seen[held, i].int() + rows.full[held, i].int()).byte()
        opened = PredictionRows(
            "run",
            worker,
            np.arange(len(worker.table)),
            levels,
            torch.ones(len(worker.table)),
            PredictionLedger(limits or PredictionLimits(), len(worker.table), folder / name),
        )
        hello = Hello(0, f"process of {name}", False, len(worker.table), "", "s", "prediction")
        endpoint = PredictionEndpoint(
            hello,
            lambda run, opened=opened: opened,  # type: ignore[misc]
            {},
            events.append,
        )
        transports.append(SilentTransport(InProcessTransport(hello, endpoint.handle)))
    parties = [RemoteParty(n, t) for n, t in zip(problem.names, transports, strict=True)]
    pool = PartyPool(
        parties,
        dict.fromkeys(problem.names, "run"),
        lambda name, hello: None,
        events.append,
        EMBED_SHARE * DEADLINE_S,
    )
    while len(pool.available()) < 3:
        time.sleep(0.01)
    method = make_small_method(problem, "xvfl+")
    try:
        yield Federation(problem, method, pool, transports, events)
    finally:
        pool.close()


def test_all_parties_answer(tmp_path: Path) -> None:
    with federation(tmp_path) as parties:
        out, batch, completed = parties.predict()
        assert batch.places == (0, 1, 2) and completed
        torch.testing.assert_close(out, parties.fused(0, 1, 2), atol=1e-5, rtol=0)


def test_a_party_without_an_answer_is_left_out_and_not_asked_again(tmp_path: Path) -> None:
    with federation(tmp_path) as parties:
        silent = parties.transports[1]
        silent.silent = lambda message, number: isinstance(message, EmbedRows)
        for _ in range(3):
            out, batch, completed = parties.predict()
            assert batch.places == (0, 2) and completed
            torch.testing.assert_close(out, parties.fused(0, 2), atol=1e-5, rtol=0)
        assert parties.pool.parties[1].reason == NO_ANSWER
        assert silent.counts[EmbedRows] == 1
        # It answers again: the session is opened again, and it takes part.
        silent.silent, silent.open = lambda message, number: False, False
        while len(parties.pool.available()) < 3:
            time.sleep(0.01)
        assert parties.predict()[1].places == (0, 1, 2)


def test_a_short_deadline_does_not_exclude_parties_from_later_requests(tmp_path: Path) -> None:
    with federation(tmp_path) as parties:
        slow = parties.transports[1]
        slow.silent = lambda message, number: isinstance(message, EmbedRows) and number == 1
        assert parties.predict(seconds=0.1)[1].places == (0, 2)
        # It is busy with the first request, and the second one has no time to wait for it.
        assert parties.predict(seconds=0.01)[1].places == (0, 2)
        assert slow.counts[EmbedRows] == 1
        timer = threading.Timer(0.1, slow.reply_late)
        timer.start()
        out, batch, completed = parties.predict()
        timer.join()
        assert batch.places == (0, 1, 2) and completed
        torch.testing.assert_close(out, parties.fused(0, 1, 2), atol=1e-5, rtol=0)
        assert "party_left_out" not in [event["event"] for event in parties.events]


def test_a_party_that_stays_silent_after_a_short_deadline_is_left_out(tmp_path: Path) -> None:
    with federation(tmp_path) as parties:
        parties.transports[1].silent = lambda message, number: isinstance(message, EmbedRows)
        assert parties.predict(seconds=0.1)[1].places == (0, 2)
        until = time.monotonic() + 60
        while parties.pool.parties[1].available and time.monotonic() < until:
            assert parties.predict()[1].places == (0, 2)
        assert parties.pool.parties[1].reason == NO_ANSWER
        assert parties.transports[1].counts[EmbedRows] == 1


def test_without_a_completion_in_time_observed_features_decide(tmp_path: Path) -> None:
    with federation(tmp_path) as parties:
        parties.transports[1].silent = lambda message, number: isinstance(message, Complete)
        out, batch, completed = parties.predict()
        assert batch.places == (0, 2) and not completed
        torch.testing.assert_close(out, parties.fused(0, 2, completing=False), atol=1e-5, rtol=0)


def test_refused_rows_are_completed_as_absent_ones(tmp_path: Path) -> None:
    with federation(tmp_path, PredictionLimits(max_per_row=1)) as parties:
        parties.predict()
        _, batch, _ = parties.predict()
        assert bool((batch.refused == (parties.problem.rows.handles >= 0)).all())
        assert not bool(batch.rows.seen.any())
        (refusal,) = {each.refusal for each in batch.answers.values()}
        assert refusal.startswith("max_per_row (1) is used up until ")


def n_available(pool: PartyPool) -> int:
    """Return the number of parties with an open session."""
    return sum(each.available for each in pool.parties)


def test_a_party_that_disconnects_is_noticed_without_a_request(tmp_path: Path) -> None:
    with federation(tmp_path) as parties:
        parties.predict()
        assert n_available(parties.pool) == 3
        parties.transports[1].open = True
        while n_available(parties.pool) > 2:
            time.sleep(0.01)
        assert parties.pool.parties[1].absence == NOT_CONNECTED
        parties.transports[1].open = False
        while n_available(parties.pool) < 3:
            time.sleep(0.01)


def test_callers_learn_a_reason_but_no_text_of_a_party(tmp_path: Path) -> None:
    with federation(tmp_path) as parties:
        views, deadline = ("masked",), time.monotonic() + DEADLINE_S
        handles = parties.problem.rows.handles
        embed_in_time(parties.pool, handles, "c", views, WIDTHS, deadline)  # type: ignore[arg-type]
        assert {each.absence for each in parties.pool.parties} == {REJECTED}
        assert "expected views among" in parties.pool.parties[0].diagnosis
        assert "expected views among" in str(parties.events)


@pytest.mark.parametrize("party", [0, 1, 2])
def test_assistance_equals_the_fused_prediction(tmp_path: Path, party: int) -> None:
    with federation(tmp_path) as parties, torch.no_grad():
        rows, deadline = parties.problem.rows, time.monotonic() + DEADLINE_S
        views = prediction_views(parties.method)
        batch = embed_in_time(parties.pool, rows.handles, "c", views, WIDTHS, deadline)
        out, _, _ = predict_in_time(parties.pool, parties.method, batch, 1, deadline, party)
        fused = parties.problem.federation()
        fused.train(False)
        expected = parties.method.logits(fused, rows, "assisted", party)
        used = rows.seen.any(1)
        torch.testing.assert_close(out[used], expected[used], atol=1e-5, rtol=0)
