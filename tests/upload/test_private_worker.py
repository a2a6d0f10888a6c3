"""Differential privacy: what a party releases of its rows, and what it rejects."""

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import norm
from torch import Tensor

from tests.federation.split_helpers import make_federation
from tests.options import resolved
from tests.problems import SEED, D, Problem
from xvfl.config import EncoderConfig, NetConfig, PrivacyConfig
from xvfl.errors import ConfigError, RunError
from xvfl.federation.privacy_accounting import calibrate, composed_epsilon, state_privacy
from xvfl.federation.request_limits import RequestLimits
from xvfl.federation.upload.encoder_net import encoder_net_config
from xvfl.federation.upload.private_worker import PrivateWorker
from xvfl.federation.upload.views import compute_views
from xvfl.methods.base import View
from xvfl.model.run_dir import RunDir
from xvfl.options import resolve_privacy
from xvfl.primitives.rows import PartyTable
from xvfl.service.uploads.party_encoder import check_epsilon

PRIVATE = PrivacyConfig("no_gradients", epsilon=4.0)


def private_problem() -> Problem:
    """Return parties whose bottoms treat each row independently."""
    made = make_federation(2, torch.float64)
    for net in made.parties:
        net.bottom = net.bottom[1]  # type: ignore[index]
    return made


def one_worker(
    noise_std: float = 2.0, seed: int = SEED, table: PartyTable | None = None
) -> PrivateWorker:
    made = private_problem()
    table = made.tables[1] if table is None else table
    return PrivateWorker(made.names[1], made.parties[1], table, [seed], noise_std)


def released(worker: PrivateWorker, views: Sequence[View] = ("plain",)) -> Tensor:
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


@pytest.mark.slow
def test_two_versions_compose() -> None:
    one, two = calibrate(2.0, 1e-5, 1), calibrate(2.0, 1e-5, 2)
    assert composed_epsilon([(two, 1), (two, 1)], 1e-5) == pytest.approx(2.0, abs=0.01)
    assert composed_epsilon([(one, 1), (one, 1)], 1e-5) > 2.5


def test_embeddings_have_norm_one_and_the_stated_noise() -> None:
    clean, noisy = released(one_worker(0.0)), released(one_worker(2.0))
    torch.testing.assert_close(clean.norm(dim=-1), torch.ones(clean.shape[:2]).double())
    rows = PartyTable(
        *(one_worker().table.layout,),
        *(part[:1].repeat(4000, *[1] * (part.dim() - 1)) for part in one_worker().table._parts()),  # type: ignore[attr-defined]
    )
    many = released(one_worker(2.0, table=rows))
    noise = many[:, 0] - clean[0, 0]
    assert float(noise.std()) == pytest.approx(2.0, rel=0.05)
    assert float(noise.mean()) == pytest.approx(0.0, abs=0.1)
    correlation = np.corrcoef(noise.T.numpy()) - np.eye(noise.shape[1])
    assert float(abs(correlation).max()) < 0.1
    step = 2.0 / 1024
    assert torch.equal((noisy / step).round() * step, noisy)


def test_repeated_requests_get_the_same_numbers_in_every_view() -> None:
    worker = one_worker()
    worker.net.train(True)
    first = released(worker)
    worker.net.train(False)
    assert torch.equal(released(worker), first)
    for step, handles in ((1, [3, 1]), (2, [1]), (7, [2, -1, 1])):
        again = worker.embed(torch.tensor(handles), ["masked", "plain"], step)
        held = [i for i, handle in enumerate(handles) if handle >= 0]
        expected = first[[handles[i] for i in held]].expand(-1, 2, -1)
        assert torch.equal(again[held], expected)
    assert not worker.embed(torch.tensor([-1]), ["plain"], 0).any()
    assert torch.equal(released(one_worker()), first), "a restarted party releases the same"


def test_a_release_depends_on_its_row_alone() -> None:
    table = one_worker().table
    assert isinstance(table, PartyTable)
    values = table.values.clone()
    values[2] = 1 - values[2]
    before, after = (
        released(one_worker()),
        released(one_worker(table=replace(table, values=values))),
    )
    same = (before == after).all(-1)
    assert not same[2].any()
    assert same[torch.arange(len(table)) != 2].all()


def test_noise_differs_between_secrets_rows_and_contents() -> None:
    table = one_worker().table
    assert isinstance(table, PartyTable)
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


def test_an_upload_is_the_release_without_copies() -> None:
    worker = one_worker()
    handles = torch.tensor([2, 0])
    views = compute_views(worker, handles, 0)
    assert torch.equal(views, released(worker)[handles].half())
    with pytest.raises(ConfigError, match="masked_copies: expected 0"):
        compute_views(worker, handles, 1)


def test_completions_are_rejected() -> None:
    with pytest.raises(RunError, match="no completion"):
        one_worker().complete(torch.zeros(1, D), torch.zeros(1, dtype=torch.bool))


def test_dropout_is_rejected() -> None:
    made = make_federation(2, torch.float64, dropout=0.3)
    with pytest.raises(ConfigError, match="treats each row independently"):
        PrivateWorker("a", made.parties[0], made.tables[0], [SEED], 1.0)


def test_configuration_is_checked() -> None:
    automatic = resolve_privacy(PrivacyConfig(epsilon=1.0), federated=False)
    assert automatic.label_protection == "no_gradients"
    for wrong in ({"epsilon": 0.0}, {"epsilon": 100.0}, {"epsilon": 1.0, "delta": 1.0}):
        for kind in (PrivacyConfig, EncoderConfig):
            with pytest.raises(ConfigError, match="expected"):
                kind(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="expected label_protection 'no_gradients', got 'noise'"):
        PrivacyConfig("noise", epsilon=1.0)
    assert resolved(privacy=PRIVATE).net.embedding_dim == 16
    assert resolved(NetConfig(8), privacy=PRIVATE).net.embedding_dim == 8
    narrow, wide = (encoder_net_config(EncoderConfig(epsilon=each)) for each in (1.0, None))
    assert (narrow.embedding_dim, narrow.number_embedding_dim) == (16, 0)
    assert (wide.embedding_dim, wide.number_embedding_dim) == (256, 8)
    assert EncoderConfig(epsilon=1.0).copies == 0


def store_version(folder: RunDir, version: int, config: EncoderConfig) -> None:
    """Write what the folder of a trained encoder has."""
    stored = RunDir(folder / f"encoders/{version}").create()
    stored.save_tensors("weights.safetensors", {}, {"config": asdict(config)})


def test_a_party_limits_the_epsilon_of_all_versions(tmp_path: Path) -> None:
    folder, two = RunDir(tmp_path), EncoderConfig(epsilon=2.0)
    limit, more = (RequestLimits(max_epsilon=each) for each in (2.5, 4.0))
    with pytest.raises(ConfigError, match="together have ε = inf"):
        check_epsilon(folder, EncoderConfig(), 1, limit)
    check_epsilon(folder, two, 1, limit)
    store_version(folder, 1, two)
    check_epsilon(folder, two, 1, limit)
    with pytest.raises(ConfigError, match=r"together have ε = [23]\.\d"):
        check_epsilon(folder, two, 2, limit)
    check_epsilon(folder, two, 2, more)
    with pytest.raises(ConfigError, match="version 1, whose rows are released"):
        check_epsilon(folder, EncoderConfig(epsilon=1.0), 1, RequestLimits())
    store_version(folder, 2, EncoderConfig())
    with pytest.raises(ConfigError, match="together have ε = inf"):
        check_epsilon(folder, two, 3, more)


def test_the_statement_has_the_noise_of_one_release() -> None:
    statement = state_privacy(EncoderConfig(epsilon=2.0))
    assert statement is not None and statement.n_releases == 1
    assert statement.noise_multiplier == calibrate(2.0, 1e-5, 1)
    assert state_privacy(EncoderConfig()) is None
