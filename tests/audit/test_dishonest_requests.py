"""A dishonest coordinator's requests, one by one: refused and logged by a party with defaults.

Echoed points and claims of unmatched rows in id matching: tests/matching.
"""

import pytest
import torch

from tests.audit.scenarios import digits
from xvfl.audit.active_attacks import DishonestCoordinator, extract_rows, hijack
from xvfl.audit.simulation import OFF, Protection, Scenario, configured_protection
from xvfl.config import PrivacyConfig
from xvfl.wire.messages import Backward, Complete, Completed, CueGradient, Gradient

DEFAULT = configured_protection(PrivacyConfig())


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    """Digits of two parties, not trained."""
    return digits(300, 1)


def coordinator(scenario: Scenario, protection: Protection) -> DishonestCoordinator:
    return DishonestCoordinator(scenario, protection, "left")


def test_unmatched_rows(scenario: Scenario) -> None:
    attacker = coordinator(scenario, DEFAULT)
    assert attacker.embed(torch.tensor([300])) is None
    (logged,) = attacker.party.rejections
    assert "handles" in logged


@pytest.mark.parametrize(("protection", "accepted"), [(DEFAULT, False), (OFF, True)])
def test_gradients_of_embeddings(
    scenario: Scenario, protection: Protection, accepted: bool
) -> None:
    attacker, rows = coordinator(scenario, protection), torch.arange(16)
    before = attacker.embed(rows)
    assert before is not None
    gradient = Gradient(attacker.n_requests, torch.ones(16, 1, attacker.width))
    after = attacker.embed(rows, (gradient,), rate=0.01)
    assert (after is not None) == accepted
    assert len(attacker.party.rejections) == (0 if accepted else 1)
    again = attacker.embed(rows, rate=0.0)
    assert again is not None and torch.equal(before, again) != accepted


@pytest.mark.parametrize(("protection", "accepted"), [(DEFAULT, False), (OFF, True)])
def test_gradients_of_cues(scenario: Scenario, protection: Protection, accepted: bool) -> None:
    attacker, rows = coordinator(scenario, protection), torch.arange(16)
    attacker.embed(rows)
    cue, every = torch.zeros(16, attacker.width), torch.ones(16, dtype=torch.bool)
    completed = attacker.send(lambda number: Complete(number, number - 1, cue, every))
    assert isinstance(completed, Completed)
    zero = torch.zeros_like(completed.values)
    reply = attacker.send(lambda number: Backward(number, Gradient(number - 1, zero)))
    assert isinstance(reply, CueGradient) == accepted


def test_single_rows_reveal_every_feature_without_protection_only(scenario: Scenario) -> None:
    off, default = (extract_rows(scenario, each, "right", 4) for each in (OFF, DEFAULT))
    assert off.score.r2 is not None and off.score.r2 > 0.99 and not off.refused
    assert default.score.r2 == 0 and default.refused
    assert any("accepts none" in reason for reason in default.rejections)


def test_a_hijacked_net_reveals_more_without_protection_only(scenario: Scenario) -> None:
    untouched, hijacked = (hijack(scenario, OFF, "right", 100, steps) for steps in (0, 100))
    assert (hijacked.score.r2 or 0) > (untouched.score.r2 or 0) and not hijacked.refused
    result = hijack(scenario, DEFAULT, "right", 100, 100)
    assert result.refused and result.n_rejected == 1
