"""Differential privacy: what a party releases of its rows, and what it rejects."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import norm
from torch import Tensor

from tests.federation.split_helpers import (
    make_federation,
    make_small_method,
)
from tests.federation.test_split import gradients
from tests.options import resolved
from tests.problems import SEED, D, Problem
from xvfl.config import NetConfig, PrivacyConfig
from xvfl.errors import ConfigError, WireError
from xvfl.federation.fused import FusedFederation
from xvfl.federation.party_worker import PartyWorker
from xvfl.federation.privacy_accounting import (
    PrivacyStatement,
    calibrate,
    composed_epsilon,
    state_privacy,
)
from xvfl.methods import METHODS
from xvfl.methods.base import View
from xvfl.options import resolve_privacy
from xvfl.primitives.rows import PartyTable

PRIVATE = PrivacyConfig("no_gradients", epsilon=4.0)
PRIVATE_METHODS = [name for name, spec in METHODS.items() if not spec.completes]


def statement(noise_std: float = 2.0, n_releases: int = 2) -> PrivacyStatement:
    return PrivacyStatement(4.0, 1e-5, n_releases, noise_std / 2, noise_std)


def make_workers(made: Problem, privacy: PrivacyStatement) -> list[PartyWorker]:
    each = zip(made.names, made.parties, made.tables, strict=True)
    return [PartyWorker(*of_party, [SEED], 0.0, privacy) for of_party in each]


def private_problem(k: int = 2, branches: int = 1) -> Problem:
    """Return parties whose bottoms treat each row independently."""
    made = make_federation(k, torch.float64, branches=branches)
    for net in made.parties:
        net.bottom = net.bottom[1]  # type: ignore[index]
    return made


def one_worker(noise_std: float = 2.0, seed: int = SEED, table: PartyTable | None = None):  # type: ignore[no-untyped-def]
    made = private_problem()
    table = made.tables[1] if table is None else table
    return PartyWorker(made.names[1], made.parties[1], table, [seed], 0.0, statement(noise_std))


def released(worker: PartyWorker, views: Sequence[View] = ("plain", "masked")) -> Tensor:
    return worker.embed(torch.arange(len(worker.table)), views, 0)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 8.0])
@pytest.mark.parametrize("n_releases", [1, 2])
def test_the_noise_is_that_of_the_exact_gaussian_mechanism(epsilon: float, n_releases: int) -> None:
    """B. Balle, Y.-X. Wang 2018: the exact δ of a Gaussian mechanism."""

    def excess(multiplier: float) -> float:
        z = multiplier / math.sqrt(n_releases)
        high, low = norm.cdf(1 / (2 * z) - epsilon * z), norm.cdf(-1 / (2 * z) - epsilon * z)
        return float(high - math.exp(epsilon) * low - 1e-5)

    exact = brentq(excess, 0.01, 100)
    assert exact <= calibrate(epsilon, 1e-5, n_releases) <= 1.02 * exact


def test_two_runs_compose() -> None:
    one, two = calibrate(2.0, 1e-5, 1), calibrate(2.0, 1e-5, 2)
    assert composed_epsilon([(two, 1), (two, 1)], 1e-5) == pytest.approx(2.0, abs=0.01)
    assert composed_epsilon([(one, 1), (one, 1)], 1e-5) > 2.5


def test_embeddings_have_norm_one_and_the_stated_noise() -> None:
    clean, noisy = released(one_worker(0.0)), released(one_worker(2.0))
    torch.testing.assert_close(clean.norm(dim=-1), torch.ones(clean.shape[:2]).double())
    rows = PartyTable(
        *(one_worker().table.layout,),
        *(part[:1].repeat(4000, *[1] * (part.dim() - 1)) for part in one_worker().table._parts()),
    )
    many = released(one_worker(2.0, table=rows))
    noise = many[:, 0] - clean[0, 0]
    assert float(noise.std()) == pytest.approx(2.0, rel=0.05)
    assert float(noise.mean()) == pytest.approx(0.0, abs=0.1)
    correlation = np.corrcoef(noise.T.numpy()) - np.eye(noise.shape[1])
    assert float(abs(correlation).max()) < 0.1
    step = 2.0 / 1024
    assert torch.equal((noisy / step).round() * step, noisy)


def test_repeated_requests_get_the_same_numbers() -> None:
    worker = one_worker()
    worker.net.train(True)
    first = released(worker)
    worker.net.train(False)
    assert torch.equal(released(worker), first)
    for step, handles in ((1, [3, 1]), (2, [1]), (7, [2, -1, 1])):
        again = worker.embed(torch.tensor(handles), ["masked", "plain"], step)
        held = [i for i, handle in enumerate(handles) if handle >= 0]
        expected = first[[handles[i] for i in held]].flip(1)
        assert torch.equal(again[held], expected)
    assert not worker.embed(torch.tensor([-1]), ["plain"], 0).any()
    assert torch.equal(released(one_worker()), first), "a restarted party releases the same"


def test_a_release_depends_on_its_row_alone() -> None:
    table = one_worker().table
    values = table.values.clone()
    values[2] = 1 - values[2]
    before, after = (
        released(one_worker()),
        released(one_worker(table=replace(table, values=values))),
    )
    same = (before == after).all(-1)
    assert not same[2].any()
    assert same[torch.arange(len(table)) != 2].all()


def test_noise_differs_between_secrets_rows_views_and_contents() -> None:
    table = one_worker().table
    equal = PartyTable(
        table.layout,
        *(part[:1].expand(3, *part.shape[1:]).clone() for part in table._parts()),
    )
    noise = released(one_worker(table=equal)) - released(one_worker(0.0, table=equal))
    other = released(one_worker(seed=SEED + 1, table=equal)) - released(
        one_worker(0.0, SEED + 1, equal)
    )
    changed = replace(equal, values=equal.values + 0.1)
    fresh = released(one_worker(table=changed)) - released(one_worker(0.0, table=changed))
    draws = torch.cat([noise.flatten(0, 1), other.flatten(0, 1), fresh.flatten(0, 1)])
    distances = torch.cdist(draws, draws) + 10 * torch.eye(len(draws))
    assert float(distances.min()) > 1.0


@pytest.mark.parametrize("name", PRIVATE_METHODS)
def test_only_heads_are_trained(name: str) -> None:
    made = private_problem(branches=METHODS[name].branches)
    method = make_small_method(made, name)
    privacy = statement(n_releases=1 + METHODS[name].masked_views)
    fused = FusedFederation(make_workers(made, privacy), sends_gradients=False)
    fused.train(True)
    fused.backward(torch.stack(list(method.loss(fused, made.rows).values())).sum())
    expected = gradients(made, method)
    assert all(not value.any() for key, value in expected.items() if not key.startswith("heads"))


@pytest.mark.parametrize(
    "views", [("self",), ("masked", "masked"), ("plain", "masked", "masked"), ("plain", "self")]
)
def test_views_that_are_not_accounted_for_are_rejected(views: tuple[View, ...]) -> None:
    with pytest.raises(WireError, match="view"):
        one_worker().embed(torch.arange(3), views, 0)


def test_completions_are_rejected() -> None:
    with pytest.raises(WireError, match="not allowed with differential privacy"):
        one_worker().complete(torch.zeros(1, D), torch.zeros(1, dtype=torch.bool))


@pytest.mark.parametrize("method", ["xvfl+", "xvfl"])
def test_methods_with_completers_are_rejected(method: str) -> None:
    with pytest.raises(ConfigError, match=r"without completers \(standalone, .*laser\+mask\), got"):
        state_privacy(PRIVATE, method)


def test_dropout_is_rejected() -> None:
    made = make_federation(2, torch.float64, dropout=0.3)
    with pytest.raises(ConfigError, match="treats each row independently"):
        make_workers(made, statement())


def test_configuration_is_checked() -> None:
    automatic = resolve_privacy(PrivacyConfig(epsilon=1.0), federated=False)
    assert automatic.label_protection == "no_gradients"
    for wrong in ({"epsilon": 0.0}, {"epsilon": 100.0}, {"epsilon": 1.0, "delta": 1.0}):
        with pytest.raises(ConfigError, match="expected"):
            PrivacyConfig(**wrong)
    with pytest.raises(ConfigError, match="expected label_protection 'no_gradients', got 'noise'"):
        PrivacyConfig("noise", epsilon=1.0)
    assert resolved(privacy=PRIVATE).net.embedding_dim == 16
    assert resolved(NetConfig(8), privacy=PRIVATE).net.embedding_dim == 8
