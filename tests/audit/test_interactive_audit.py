"""Attacks on simulated interactive training: what noisy labels prevent, and what they do not."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from tests.audit.scenarios import bank, digits, needs_bank, replaces_bank
from tests.problems import MIXED, make_problem
from xvfl.audit.findings import Finding
from xvfl.audit.hijack import hijack
from xvfl.audit.interactive_audit import QUICK, Attacks, AuditOptions, AuditResult, audit
from xvfl.audit.simulation import OFF, Scenario, configured_protection, simulate
from xvfl.audit.traffic import RecordingFederation, Traffic
from xvfl.config import LossConfig, NetConfig, PrivacyConfig

SMALL = AuditOptions(
    draws=5,
    inversion_rows=8,
    inversion_steps=60,
    hijack_steps=60,
    max_rows=200,
)
MEDIUM = replace(SMALL, inversion_rows=16, inversion_steps=100, max_rows=600)
CASES: dict[str, tuple[Callable[[], Scenario], AuditOptions]] = {
    "small digits": (lambda: digits(400, 2, NetConfig(64, 128)), SMALL),
    "members": (
        lambda: digits(400, 2, NetConfig(32, 128, number_embedding_dim=0, members=2)),
        SMALL,
    ),
    "digits": (lambda: digits(1200, 5), MEDIUM),
    "bank": (lambda: bank(600, 4), replace(MEDIUM, max_rows=400)),
}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("small digits", marks=pytest.mark.slow),
        pytest.param("members", marks=pytest.mark.slow),
        pytest.param("digits", marks=[pytest.mark.slow, replaces_bank]),
        pytest.param("bank", marks=[pytest.mark.slow, needs_bank]),
    ],
)
def result(request: pytest.FixtureRequest) -> AuditResult:
    """Audit a scenario, once for all tests."""
    scenario, options = CASES[request.param]
    return audit(scenario(), options)


def select(result: AuditResult, attack: str, metric: str | None = None) -> list[Finding]:
    """Return the findings of the attacks whose name starts with `attack`; there must be some."""
    found = [
        each
        for each in result.findings
        if each.key.attack.startswith(attack) and metric in (None, each.key.metric)
    ]
    assert found, attack
    return found


def find(result: AuditResult, attack: str, target: str, metric: str) -> Finding:
    """Return the finding of one attack on one party."""
    (found,) = [each for each in select(result, attack, metric) if each.key.target == target]
    return found


def test_noise_hides_labels_from_gradients(result: AuditResult) -> None:
    received = [result.about[name]["gradients_received"] for name in ("configured", "off")]
    assert min(min(each.values()) for each in received) > 0
    gradients = select(result, "gradient")
    assert len(gradients) == 2 * 3 * 2  # Two parties, three attacks, one step and all steps.
    for each in gradients:
        if "norm" not in each.key.attack:
            assert each.unprotected > 0.9, each
            assert each.protected < each.unprotected, each


def test_a_guessed_seed_recovers_nothing(result: AuditResult) -> None:
    for attack in ("inversion, guessed seed", "inversion of cues, guessed seed"):
        for each in select(result, attack, "R²"):
            assert each.protected <= 0.1 < each.unprotected
        for each in select(result, attack, "rows"):
            decoder = find(result, "decoder, embeddings", each.key.target, "rows")
            assert each.protected <= decoder.protected
            assert each.unprotected > 0.9


def test_a_decoder_with_known_rows_recovers_features(result: AuditResult) -> None:
    """What remains, stated in the docs: no setting makes embeddings unreadable."""
    for each in select(result, "decoder, embeddings", "R²"):
        assert each.unprotected > each.without_federation
        assert each.protected > each.without_federation


def test_quick_options_are_weaker() -> None:
    full = AuditOptions()
    assert all(getattr(QUICK, name) <= getattr(full, name) for name in vars(full))


@pytest.mark.parametrize(
    ("method", "interval"), [("laser+mask", 0), ("xvfl+", 2)], ids=["laser+mask", "xvfl+"]
)
@pytest.mark.slow
def test_steps_on_masked_copies_alone_are_attacked(method: str, interval: int) -> None:
    scenario = digits(200, 1, NetConfig(16, 16))
    train = replace(scenario.train, completion_interval=interval)
    scenario = replace(scenario, loss=LossConfig(method=method), train=train)
    attacks = Attacks(simulate(scenario, OFF), SMALL)
    for step in (attacks._gradients, attacks._decoders, attacks._inversions):
        step("left")
    traffic = attacks.simulation.traffic["left"]
    assert len(traffic.masked_gradients.mean) and len(traffic.masked_embeddings.mean)
    found = {key.attack: each.value for key, each in attacks.found.items()}
    assert found["gradient spectral, all steps"] > 0.6
    assert {"decoder, embeddings", "inversion, guessed seed"} <= set(found)


def test_a_hijacked_net_reveals_more() -> None:
    scenario = digits(300, 1)
    table = scenario.table("right")
    untouched, hijacked = (
        hijack(scenario.make_worker("right", OFF), table, 100, steps) for steps in (0, 100)
    )
    assert (hijacked.r2 or 0) > (untouched.r2 or 0)


def test_recorded_gradients_are_those_of_the_outputs() -> None:
    problem = make_problem([MIXED, MIXED], ["FF", "F-", "PF"])
    fused = problem.federation()
    traffic = {name: Traffic(len(t)) for name, t in zip(problem.names, problem.tables, strict=True)}
    recording = RecordingFederation(fused.workers, traffic)
    recording.train(True)
    E = recording.embed(problem.rows, ["plain", "masked"])
    weight = torch.arange(E.numel(), dtype=E.dtype).view_as(E)
    recording.backward((E * weight).sum())
    for place, name in enumerate(problem.names):
        handles = problem.rows.handles[:, place]
        held = handles >= 0
        found = traffic[name].embedding_gradients.last
        expected = weight[held, place].flatten(1)[handles[held].argsort()]
        torch.testing.assert_close(found.values, expected.float())
        sent = traffic[name].embeddings.last
        plain = E[held, place, 0].detach()[handles[held].argsort()]
        torch.testing.assert_close(sent.values, plain.float())


def test_the_configured_protection_has_private_seeds() -> None:
    scenario = digits(100, 1)
    noise = configured_protection(PrivacyConfig("noise"))
    assert scenario.party_seed("left", noise) != scenario.party_seed("left", OFF)
    assert "noise" in noise.description
