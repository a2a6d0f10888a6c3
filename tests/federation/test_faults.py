"""Parties that refuse, fail together or start over and over again: the others go on."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from tests.federation.elastic_helpers import (
    NAMES,
    FlakyTransport,
    make_endpoint,
    make_roster,
    make_workers,
    run_terms,
    train_config,
)
from tests.federation.split_helpers import InMemoryCheckpoints
from tests.wire.transport_helpers import wait_until
from xvfl.errors import PartyError, RunError, WireError
from xvfl.federation.elastic import ElasticFederation
from xvfl.federation.endpoint import Endpoint
from xvfl.federation.membership import MAX_REJECTIONS
from xvfl.federation.remote_party import RemoteParty
from xvfl.wire.messages import Backward, Begin, Complete, Embed, Flush, Message

pytestmark = pytest.mark.usefixtures("limited_threads")


class Refusing(Endpoint):
    """A party that refuses some of what it is asked."""

    refuses: Callable[[Message], bool] = staticmethod(lambda message: False)

    def _dispatch(self, message: Message) -> Message:
        if self.refuses(message):
            raise WireError("not today")
        return super()._dispatch(message)


def refusing(line: FlakyTransport, refuses: Callable[[Message], bool]) -> None:
    """Have the party on a line refuse some of what it is asked."""
    line.end.__class__, line.end.refuses = Refusing, refuses  # type: ignore[assignment,attr-defined]


@pytest.mark.parametrize("kind", [Embed, Complete, Backward, Flush])
def test_a_party_that_refuses_sits_out_the_batch_and_comes_back(kind: type[Any]) -> None:
    roster, trainer, flaky, events, _ = make_roster(train_config("adamw", epochs=2))
    steps = trainer.run(lambda: 0.0)
    for _ in range(4):
        next(steps)
    once = iter([True])
    refusing(flaky[1], lambda message: isinstance(message, kind) and next(once, False))
    if kind is Flush:
        roster.flush()
    for at in range(4, 7):
        next(steps)
        assert roster.present == ((0,) if at == 4 and kind is not Flush else (0, 1))
    for _ in steps:
        pass
    assert trainer.progress.step == 20 and roster.fault_counts.rejections == {"p1": 1}
    left = next(e for e in events if e["event"] == "party_left")
    assert left["party"] == "p1" and left["reason"] == "party 'p1' rejected the request: not today"
    assert [e["event"] for e in events] == [
        "party_joined",
        "party_joined",
        "party_left",
        "party_joined",
    ]
    numbers = [number for _, number in flaky[1].heard]
    assert numbers == sorted(set(numbers))


def test_a_party_that_always_refuses_is_kept_out_and_the_others_go_on() -> None:
    roster, trainer, flaky, events, _ = make_roster(train_config("adamw", epochs=2))
    steps = trainer.run(lambda: 0.0)
    next(steps)
    refusing(flaky[1], lambda message: isinstance(message, Embed))
    for _ in steps:
        pass
    assert trainer.progress.step == 20 and roster.present == (0,)
    assert [e["step"] for e in events if e["event"] == "party_left"] == [1, 2, 4, 7, 11]
    assert roster.fault_counts.rejections == {"p1": MAX_REJECTIONS}
    assert flaky[1].end.end_reason == "excluded: party 'p1' rejected the request: not today"


def test_refusals_end_a_run_that_needs_the_party(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xvfl.federation.membership.BACKOFF_S", 0.01)
    roster, trainer, flaky, _, _ = make_roster(train_config("adamw", epochs=2), minimum=2)
    steps = trainer.run(lambda: 0.0)
    next(steps)
    left = iter(range(2))
    refusing(flaky[1], lambda message: isinstance(message, Embed) and next(left, None) is not None)
    next(steps)
    assert roster.fault_counts.rejections == {"p1": 2} and roster.present == (0, 1)
    refusing(flaky[1], lambda message: isinstance(message, Embed))
    with pytest.raises(RunError, match="expected 2 parties, but p1 is excluded: .*not today"):
        next(steps)


def test_a_party_that_refuses_to_begin_is_asked_again_a_few_times_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("xvfl.federation.membership.BACKOFF_S", 0.01)
    made, *_ = make_workers()
    ends = [make_endpoint(side, InMemoryCheckpoints()) for side in made]
    flaky = [FlakyTransport(end) for end in ends]
    refusing(flaky[1], lambda message: isinstance(message, Begin))
    events: list[dict[str, Any]] = []
    peers = [RemoteParty(name, line) for name, line in zip(NAMES, flaky, strict=True)]
    roster = ElasticFederation(peers, run_terms(train_config("adamw", epochs=1)), events.append)
    with pytest.raises(RunError, match="expected 2 parties, but p1 is excluded: .*not today"):
        roster.wait_for(2)
    assert [e["event"] for e in events if e.get("party") == "p1"] == [
        *["join_failed"] * MAX_REJECTIONS,
        "party_excluded",
    ]


def test_after_the_last_batch_a_party_that_failed_to_join_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("xvfl.federation.membership.BACKOFF_S", 0.01)
    made, *_ = make_workers()
    flaky = [FlakyTransport(make_endpoint(side, InMemoryCheckpoints())) for side in made]
    left = iter(range(3))
    refusing(flaky[1], lambda message: isinstance(message, Begin) and next(left, None) is not None)
    events: list[dict[str, Any]] = []
    peers = [RemoteParty(name, line) for name, line in zip(NAMES, flaky, strict=True)]
    roster = ElasticFederation(peers, run_terms(train_config("adamw", epochs=1)), events.append)
    wait_until(lambda: roster.wait_for(0) == (0, 1))
    assert [e["event"] for e in events if e.get("party") == "p1"] == [
        *["join_failed"] * 3,
        "party_joined",
    ]


class Restarting(FlakyTransport):
    """A party that answers `Begin`, and starts again instead of embedding some rows."""

    dies: Callable[[Message], bool] = staticmethod(lambda message: isinstance(message, Embed))
    lives = 0

    def request(self, message: Message) -> "Future[Message]":
        if not self.dies(message):
            return super().request(message)
        self.lives += 1
        assert self.lives < 50, "the batch is begun again and again"
        made, *_ = make_workers()
        self.end = make_endpoint(
            made[1], InMemoryCheckpoints(), instance_id=f"instance_id {self.lives}"
        )
        self._handle = self.end.handle
        answer: Future[Message] = Future()
        answer.set_exception(PartyError("party 'p1' restarted", ("p1",)))
        return answer


def test_a_party_that_starts_again_on_every_batch_does_not_hold_up_the_run() -> None:
    _, trainer, flaky, events, _ = make_roster(train_config("adamw", epochs=2))
    steps = trainer.run(lambda: 0.0)
    next(steps)
    flaky[1].__class__ = Restarting
    for _ in steps:
        pass
    assert trainer.progress.step == 20
    assert [e["step"] for e in events if e["event"] == "party_left"] == [1, 2, 4, 7, 11, 16]
    assert flaky[1].end.end_reason is None


def test_a_party_that_dies_of_one_batch_sits_out_that_one() -> None:
    roster, trainer, flaky, _, _ = make_roster(train_config("adamw", epochs=2))
    steps = trainer.run(lambda: 0.0)
    next(steps)
    flaky[1].__class__ = Restarting
    flaky[1].dies = lambda message: isinstance(message, Embed) and message.step == 4  # type: ignore[attr-defined]
    present = [roster.present for _ in steps]
    assert present.count((0,)) == 1 and present[3] == (0,)
    assert flaky[1].lives == 1 and roster.fault_counts.repeated_batches == 1  # type: ignore[attr-defined]


def test_a_party_that_is_needed_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xvfl.federation.membership.BACKOFF_S", 0.01)
    roster, trainer, flaky, _, _ = make_roster(train_config("adamw", epochs=2), minimum=2)
    steps = trainer.run(lambda: 0.0)
    next(steps)
    flaky[1].__class__ = Restarting
    left = iter(range(8))
    flaky[1].dies = lambda message: isinstance(message, Embed) and next(left, None) is not None  # type: ignore[attr-defined]
    for _ in steps:
        assert roster.present == (0, 1)
    assert trainer.progress.step == 20 and roster.fault_counts.departures == {"p1": 8}


TOGETHER = {
    "refused": "party 'p0' rejected the request: not today",
    "away": "no reply in time from p0",
}


@pytest.mark.parametrize("other", TOGETHER)
def test_two_that_fail_together_are_both_named_and_what_they_lost_is_noted(other: str) -> None:
    roster, trainer, flaky, events, _ = make_roster(train_config("adamw", epochs=2))
    steps = trainer.run(lambda: 0.0)
    for _ in range(4):
        next(steps)
    for line in flaky if other == "refused" else flaky[1:]:
        once = iter([True])
        refusing(line, lambda message, o=once: isinstance(message, Embed) and next(o, False))
    if other == "away":
        flaky[0].silent = "before"
    next(steps)
    flaky[0].silent = None
    for _ in steps:
        pass
    roster.flush()
    left = {
        e["party"]: e["reason"] for e in events if e["event"] == "party_left" and e["step"] == 4
    }
    assert left == {"p0": TOGETHER[other], "p1": "party 'p1' rejected the request: not today"}
    joined = [e for e in events if e["event"] == "party_joined" and e["lost_updates"]]
    for name, line in zip(NAMES, flaky, strict=True):
        spans = [e["lost_updates"] for e in joined if e["party"] == name]
        lost = [number for first, last in spans for number in range(first, last + 1)]
        made = [number for _, number in line.heard]
        assert 4 in lost and sorted(made + lost) == list(range(1, roster.counters.update + 1))
