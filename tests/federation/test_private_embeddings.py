"""Differential privacy: what a party releases of its rows, and what it rejects."""

import json
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

from tests.federation.split_helpers import (
    InMemoryCheckpoints,
    begin_run,
    make_federation,
    make_small_method,
)
from tests.federation.test_split import assert_equal, gradients, split_gradients
from tests.options import resolved
from tests.problems import SEED, D, Problem
from xvfl.config import NetConfig, PrivacyConfig, TrainConfig
from xvfl.errors import ConfigError, PartyError, WireError
from xvfl.federation.endpoint import Endpoint, PartyRun
from xvfl.federation.fused import FusedFederation
from xvfl.federation.party_worker import PartyWorker
from xvfl.federation.privacy_accounting import (
    PrivacyStatement,
    calibrate,
    composed_epsilon,
    state_privacy,
)
from xvfl.federation.request_ledger import RequestLedger, RequestLimits
from xvfl.federation.run_settings import RunSettings
from xvfl.methods import METHODS
from xvfl.methods.base import View
from xvfl.options import resolve_privacy
from xvfl.primitives.rows import PartyTable
from xvfl.wire import codec
from xvfl.wire.in_process import InProcessTransport
from xvfl.wire.messages import Begin, Embed, Hello

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
def test_split_and_fused_agree_and_only_heads_are_trained(name: str) -> None:
    made = private_problem(branches=METHODS[name].branches)
    method = make_small_method(made, name)
    privacy = statement(n_releases=1 + METHODS[name].masked_views)
    fused = FusedFederation(make_workers(made, privacy), sends_gradients=False)
    fused.train(True)
    fused.backward(torch.stack(list(method.loss(fused, made.rows).values())).sum())
    expected = gradients(made, method)
    assert all(not value.any() for key, value in expected.items() if not key.startswith("heads"))
    ends = private_endpoints(made, privacy)
    lines = [InProcessTransport(end.hello, end.handle) for end in ends]
    split = begin_run(lines, made.names, private_settings(name), METHODS[name].branches)
    split.sends_gradients = False
    assert_equal(split_gradients(made, method, split), expected, 1e-12)


def private_endpoints(
    made: Problem, privacy: PrivacyStatement, limits: RequestLimits | None = None
) -> list[Endpoint]:
    ends = []
    limits = limits or RequestLimits(
        min_rows=1, min_training_share=0, settings=None, accept_gradients=True
    )
    for worker in make_workers(made, privacy):
        n = len(worker.table)
        hello = Hello(0, f"instance-{worker.name}", False, n, "columns", "session")

        def start(
            settings: RunSettings, training: Tensor, worker: PartyWorker = worker
        ) -> PartyRun:
            ledger = RequestLedger(limits, len(worker.table))
            return PartyRun(worker, torch.full((len(worker.table),), 2).byte(), ledger)

        ends.append(Endpoint(hello, start, InMemoryCheckpoints()))
    return ends


def private_settings(method: str = "laser+mask", warm: str = "") -> str:
    train = TrainConfig(optimizer="sgd")
    settings = RunSettings(method, NetConfig(D, 6), train, privacy=PRIVATE, warm=warm)
    return json.dumps(asdict(settings))


def start_one(warm: str = "") -> tuple[Endpoint, object]:
    end = private_endpoints(private_problem(), statement())[1]
    nothing = torch.zeros(0, dtype=torch.int32)
    begin = Begin(1, "run", 0, private_settings(warm=warm), nothing)
    return end, codec.decode(end.handle(codec.encode(begin)))


@pytest.mark.parametrize(
    "views", [("self",), ("masked", "masked"), ("plain", "masked", "masked"), ("plain", "self")]
)
def test_views_that_are_not_accounted_for_are_rejected(views: tuple[str, ...]) -> None:
    end, _ = start_one()
    rows = torch.arange(3, dtype=torch.int32)
    for training in (True, False):
        reply = codec.decode(end.handle(codec.encode(Embed(2, (), (), 0, training, views, rows))))
        assert "view" in str(reply)
        assert type(reply).__name__ == "ErrorReply"


def test_completions_gradients_and_warm_starts_are_rejected() -> None:
    end, _ = start_one()
    with pytest.raises(WireError, match="not allowed with differential privacy"):
        end.worker.complete(torch.zeros(1, D), torch.zeros(1, dtype=torch.bool))
    made, method = private_problem(), make_small_method(private_problem(), "laser+mask")
    lines = [
        InProcessTransport(end.hello, end.handle) for end in private_endpoints(made, statement())
    ]
    split = begin_run(lines, made.names, private_settings())
    with pytest.raises(PartyError, match="not allowed with differential privacy"):
        split_gradients(made, method, split)
    _, reply = start_one(warm="other")
    assert "cannot start from the weights" in str(reply)


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


def test_a_party_limits_epsilon_over_its_runs(tmp_path: Path) -> None:
    limits, training = RequestLimits(max_epsilon=3.0), torch.arange(5)
    options = resolved(privacy=PRIVATE)
    settings = RunSettings("laser", options.net, options.train, privacy=PRIVATE)
    public = replace(settings, privacy=PrivacyConfig("no_gradients"))
    two = state_privacy(replace(PRIVATE, epsilon=2.0), "laser")
    ledger = RequestLedger(limits, 5, tmp_path / "requests.npy")
    with pytest.raises(WireError, match="got a run without differential privacy"):
        ledger.begin("a", public, training)
    ledger.begin("a", settings, training, two)
    assert ledger.usage()["privacy_epsilon"] == 2.0
    assert ledger.usage()["privacy_epsilon_of_all_runs"] == pytest.approx(2.0, abs=0.01)
    again = RequestLedger(limits, 5, tmp_path / "requests.npy")
    again.begin("a", settings, training, two)
    with pytest.raises(WireError, match=r"allows ε up to 3 .* got 3\.\d"):
        RequestLedger(replace(limits, max_epsilon=3.0), 5, tmp_path / "requests.npy").begin(
            "b", settings, training, replace_multiplier(two)
        )
    with pytest.raises(WireError, match="privacy of run 'a' changed"):
        RequestLedger(replace(limits, max_epsilon=50.0), 5, tmp_path / "requests.npy").begin(
            "a", settings, training, replace_multiplier(two)
        )


def replace_multiplier(privacy: PrivacyStatement | None) -> PrivacyStatement:
    assert privacy is not None
    return replace(privacy, noise_multiplier=privacy.noise_multiplier * 0.9)
