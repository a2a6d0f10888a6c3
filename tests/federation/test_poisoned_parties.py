"""Poisoned values of a party are noticed within an epoch, and honest training is not."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.federation.poisoned_parties import (
    LEAVE,
    NET,
    NO_GRADIENTS,
    SENDS_GRADIENTS,
    PoisonedRun,
    make_run,
)
from tests.federation.poisoned_values import ATTACKS, Poisoner
from xvfl.config import PrivacyConfig
from xvfl.federation.party_monitor import MAX_CORRELATION, MAX_INCONSISTENCY, PartyMonitor
from xvfl.federation.party_statistics import History, answer_statistics, inconsistency, sketch
from xvfl.methods import METHODS
from xvfl.wire.messages import Completed

pytestmark = pytest.mark.usefixtures("limited_threads")
KINDS = {
    "times_1000": {"scale"},
    "noise": {"drift", "inconsistent"},
    "constant": {"constant"},
    "replay": {"repeat"},
}
"""How each attack may be noticed first."""


@pytest.mark.parametrize(
    "first", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["first step", "later"]
)
@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("data", ["digits", pytest.param("bank", marks=pytest.mark.slow)])
def test_an_attack_is_noticed_within_an_epoch(data: str, attack: str, first: bool) -> None:
    run = make_run(data, epochs=2 if first else 4, policy="leave_out")
    start = 0 if first else 2 * run.trainer.batches_per_epoch + 3
    run.train(attack, start)
    (anomaly,) = run.anomalies()
    name = run.federation.names[1]
    assert anomaly["party"] == name and anomaly["kind"] in KINDS[attack]
    assert anomaly["epoch"] == (1 if first else 3)
    (excluded,) = [event for event in run.events if event["event"] == "party_excluded"]
    assert excluded["party"] == name and anomaly["reason"] in excluded["reason"]
    assert run.federation.present == (0,)


@pytest.mark.slow
@pytest.mark.parametrize(
    "attack",
    [
        attack if attack in (None, "noise") else pytest.param(attack, marks=pytest.mark.slow)
        for attack in (None, *ATTACKS)
    ],
)
def test_an_attack_on_several_members_is_noticed(attack: str | None) -> None:
    run = make_run("digits", epochs=3, policy="leave_out", net=replace(NET, members=3))
    run.train(attack, run.trainer.batches_per_epoch + 3)
    kinds = {(event["party"], event["kind"]) for event in run.anomalies()}
    assert kinds <= {("right", kind) for kind in KINDS.get(attack or "", set())}
    assert run.federation.present == ((0, 1) if attack is None else (0,))


def test_constant_completed_embeddings_are_noticed_as_drift() -> None:
    """Honest ones may be nearly constant, so the check of constants ignores them."""
    run = make_run("digits", epochs=3, policy="leave_out")
    run.transports[1].poisoner = Poisoner((Completed,))
    run.train("constant", run.trainer.batches_per_epoch + 3)
    (anomaly,) = run.anomalies()
    assert (anomaly["party"], anomaly["kind"], anomaly["epoch"]) == ("right", "drift", 2)
    assert "completed embeddings" in anomaly["reason"]


@pytest.mark.parametrize("attack", ["noise", "replay"])
def test_with_the_policy_warn_the_party_stays(attack: str) -> None:
    run = make_run("digits", epochs=2).train(attack)
    assert run.federation.present == (0, 1)
    logged = [(event["party"], event["kind"], event["epoch"]) for event in run.anomalies()]
    assert len(logged) == len(set(logged)) and {epoch for *_, epoch in logged} >= {1, 2}
    assert {party for party, *_ in logged} == {"right"}
    assert run.federation.monitor is not None
    assert run.federation.monitor.counts == {"right": len(logged)}


@pytest.mark.slow
def test_clipping_limits_the_harm_of_a_wrong_scale() -> None:
    clipped = make_run("digits", epochs=4, policy="clip", protection=SENDS_GRADIENTS)
    harmed = make_run("digits", epochs=4, policy=None, protection=SENDS_GRADIENTS)
    start = clipped.trainer.batches_per_epoch
    clipped.train("times_1000", start)
    assert clipped.accuracy() > harmed.train("times_1000", start).accuracy() + 0.1
    assert {event["kind"] for event in clipped.anomalies()} == {"scale"}


@pytest.mark.slow
@pytest.mark.parametrize(("first", "protection"), [(True, SENDS_GRADIENTS), (False, NO_GRADIENTS)])
def test_poisoned_values_change_no_weight(first: bool, protection: PrivacyConfig) -> None:
    """A run that leaves a party out equals a run in which the party leaves before the attack."""

    def train(change: str) -> PoisonedRun:
        run = make_run("digits", epochs=2, policy="leave_out", protection=protection)
        return run.train(change, 0 if first else run.trainer.batches_per_epoch + 3)

    expected = train(LEAVE).method.heads.state_dict()
    for attack in ATTACKS:
        run = train(attack)
        assert run.federation.present == (0,)
        for name, weight in run.method.heads.state_dict().items():
            assert torch.equal(weight, expected[name]), (attack, name)


@pytest.mark.slow
def test_poisoned_values_harm_a_run_without_a_monitor() -> None:
    """Without this, the tests of `leave_out` would show nothing."""
    data, epochs = "digits", 16
    honest = make_run(data, epochs, None, protection=SENDS_GRADIENTS).train().auroc()
    for attack in ATTACKS:
        harmed = make_run(data, epochs, None, protection=SENDS_GRADIENTS).train(attack)
        assert harmed.auroc() < honest - 0.02, attack


HONEST = (
    ("digits", 2, NO_GRADIENTS),
    ("digits", 2, SENDS_GRADIENTS),
    ("bank", 10, NO_GRADIENTS),
    ("bank", 10, SENDS_GRADIENTS),
)


def _honest_runs() -> Iterator[Any]:
    """Yield every method on every data set, and `xvfl+` with every protection."""
    for method in METHODS:
        for data, epochs, protection in HONEST:
            if protection is NO_GRADIENTS or method == "xvfl+":
                fast = (data, protection) == ("digits", NO_GRADIENTS)
                fast &= method in ("xvfl+", "laser+mask")
                marks = () if fast else pytest.mark.slow
                yield pytest.param(method, data, epochs, protection, marks=marks)


@pytest.mark.parametrize(("method", "data", "epochs", "protection"), list(_honest_runs()))
def test_honest_training_raises_no_alarm(
    method: str, data: str, epochs: int, protection: PrivacyConfig
) -> None:
    run = make_run(data, epochs, "leave_out", method, protection).train()
    assert run.anomalies() == [] and run.federation.present == (0, 1)


def test_completions_from_poisoned_cues_are_not_blamed_on_the_honest_party() -> None:
    run = make_run("digits", epochs=2, policy="warn").train("times_1000", start=5)
    assert {event["party"] for event in run.anomalies()} == {"right"}


def test_statistics_agree_with_numpy() -> None:
    rng = torch.Generator().manual_seed(1)
    values = torch.randn(40, 3, 2, 6, generator=rng) + 0.5
    counted = torch.rand(40, 3, generator=rng) < 0.7
    found = answer_statistics(values, counted)
    for i in range(3):
        x = values[:, i].numpy()[counted[:, i].numpy()]
        first = x[:, 0]
        assert int(found.rows[i]) == len(x)
        assert math.isclose(float(found.rms[i]), np.sqrt((x**2).mean()), rel_tol=1e-5)
        largest = max(np.sqrt((view**2).mean()) for row in x for view in row)
        assert math.isclose(float(found.largest[i]), largest, rel_tol=1e-5)
        moment = sum(np.outer(row, row) for row in first)
        moment = moment / np.linalg.norm(moment)
        assert np.allclose(found.moment[i], moment, atol=1e-5)
        deviation = np.sqrt(((first - first.mean(0)) ** 2).mean())
        spread = deviation / np.sqrt((first**2).mean())
        # Rows that are not counted deviate by the mean, and have weight 0.
        assert math.isclose(float(found.spread[i]), spread, rel_tol=1e-4)


def test_a_repeated_batch_is_no_replay() -> None:
    rng = torch.Generator().manual_seed(2)
    history, answer = History(), sketch(torch.randn(64, 8, generator=rng))
    other = sketch(torch.randn(64, 8, generator=rng))
    assert answer is not None and other is not None
    assert history.repeats(answer, 0)[0] < MAX_CORRELATION
    assert history.repeats(answer, 0)[0] < MAX_CORRELATION
    assert history.repeats(other, 1)[0] < MAX_CORRELATION
    correlation, step = history.repeats(answer, 7)
    assert correlation > MAX_CORRELATION and step == 0


def test_answers_with_few_different_rows_have_no_sketch() -> None:
    values = torch.zeros(64, 8)
    values[3:10] = torch.randn(7, 8, generator=torch.Generator().manual_seed(3))
    assert sketch(values) is None and sketch(torch.randn(8, 8)) is None
    assert sketch(torch.ones(64, 8)) is None


def test_a_replay_is_noticed_if_few_rows_are_far_from_the_others() -> None:
    rng = torch.Generator().manual_seed(4)

    def answer() -> torch.Tensor:
        values = 5 + torch.randn(64, 8, generator=rng)
        values[torch.randperm(32, generator=rng)[:2]] += 100
        return values

    history, replayed = History(), answer()
    for step, values in enumerate([replayed, *(answer() for _ in range(100))]):
        described = sketch(values)
        assert described is not None
        assert history.repeats(described, step)[0] < 0.8, step
    described = sketch(replayed)
    assert described is not None
    correlation, step = history.repeats(described, 101)
    assert correlation > MAX_CORRELATION and step == 0


def test_inconsistency_of_noise_and_of_rounding() -> None:
    values = torch.randn(100, 8, generator=torch.Generator().manual_seed(3))
    assert inconsistency(values, values.bfloat16().float()) < 1e-4
    assert inconsistency(values, values.roll(1, 0)) > MAX_INCONSISTENCY


def test_a_party_that_restarts_has_no_history() -> None:
    run = make_run("digits", epochs=1)
    events: list[dict[str, object]] = []
    monitor = PartyMonitor("warn", events.append)
    run.federation.monitor = monitor
    steps = run.trainer.run(lambda: 0.0)
    for _ in range(3):
        next(steps)
    run.transports[1]._hello = replace(run.transports[1]._hello, instance_id="second")
    assert any(name == "right" for name, _ in monitor._histories)
    run.federation.wait_for(2)
    assert not any(name == "right" for name, _ in monitor._histories)


def test_a_party_that_increases_the_validation_loss_twice_in_a_row_is_reported() -> None:
    without = torch.rand(100)
    events: list[dict[str, object]] = []
    monitor = PartyMonitor("leave_out", events.append)

    def check(harm: float) -> str | None:
        reason = monitor.check_validation("p1", without + harm, without)
        monitor.end_epoch()
        return reason

    assert check(0.5) is None, "the head may be hardly trained"
    assert check(0.0) is None and check(0.5) is None, "not in a row"
    reason = check(0.5)
    assert reason is not None and "with it and" in reason
    assert [(event["kind"], event["epoch"]) for event in events] == [("validation", 4)]
    monitor.forget("p1")
    assert check(0.5) is None, "the party restarted"
