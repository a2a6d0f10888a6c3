"""Each attack on small data with a known answer."""

from typing import cast

import numpy as np
import pytest
import torch

from tests.problems import MIXED, make_problem
from xvfl.audit.feature_attacks import decoder_attack, embed_rows, invert, jacobian
from xvfl.audit.label_attacks import (
    direction_attack,
    model_completion,
    norm_attack,
    spectral_attack,
)
from xvfl.audit.scoring import class_auc, score_features
from xvfl.nets.party_net import PartyNet
from xvfl.nets.stacked import stack

RNG = np.random.default_rng(0)
Y = RNG.integers(2, size=400)
NOISE = RNG.normal(size=(400, 6))


def test_norm_direction_and_spectral_attacks_find_what_labels_change() -> None:
    longer = NOISE * (1 + 4 * Y[:, None])
    turned = NOISE + 8 * np.where(Y[:, None] == 1, 1, -1) * np.eye(6)[0]
    assert norm_attack(longer, Y) > 0.95 and norm_attack(NOISE, Y) < 0.6
    assert direction_attack(turned, Y) > 0.95 and direction_attack(NOISE, Y) < 0.6
    assert spectral_attack(turned, Y) > 0.95 and spectral_attack(NOISE, Y) < 0.6


@pytest.mark.parametrize("attack", [norm_attack, direction_attack, spectral_attack])
def test_without_rows_or_classes_labels_are_a_coin_toss(attack) -> None:  # type: ignore[no-untyped-def]
    assert attack(np.zeros((0, 4)), np.zeros(0, dtype=int)) == 0.5
    assert attack(NOISE, np.zeros(400, dtype=int)) == 0.5


def test_auc_has_either_sign() -> None:
    assert class_auc(-Y.astype(float), Y, 1) == 1.0
    assert class_auc(np.ones(400), Y, 1) == 0.5


def test_model_completion_learns_from_a_few_labels() -> None:
    assert model_completion(NOISE + 3 * Y[:, None], Y, 40, 3) > 0.95
    assert abs(model_completion(NOISE, Y, 40, 5) - 0.5) < 0.1


def test_features_are_scored_by_kind_and_only_where_observed() -> None:
    table = make_problem([MIXED], ["F"] * 30 + ["P"] * 30).tables[0]
    exact = score_features(table.values, table)
    assert (exact.r2, exact.accuracy, exact.rows_recovered) == (1.0, 1.0, 1.0)
    wrong = torch.where(table.observed[:, [0, 0, 0, 1, 2, 2, 2, 2, 2, 3, 3]], table.values, 9.0)
    assert score_features(wrong, table) == exact
    nothing = score_features(torch.full_like(table.values, 0.5), table)
    assert nothing.r2 == 0.0 and nothing.rows_recovered < 0.2


def test_a_decoder_reads_a_linear_code_and_nothing_from_noise() -> None:
    table = make_problem([MIXED], ["F"] * 300).tables[0]
    rng = torch.Generator().manual_seed(0)
    code = torch.randn(table.values.shape[1], 20, generator=rng, dtype=torch.float64)
    read, decoded = decoder_attack(table.values @ code, table, 100)
    assert (read.r2 or 0) > 0.95 and read.accuracy == 1.0 and decoded.shape == table.values.shape
    noise, _ = decoder_attack(torch.randn(300, 20, generator=rng), table, 100)
    assert (noise.r2 or 0) < 0.1


def smooth_net(seed: int) -> PartyNet:
    net = make_problem([MIXED], ["F"], seed).parties[0]
    torch.manual_seed(seed)
    bottom = torch.nn.Linear(net.layout.encoded + net.layout.raw, 40)
    net.bottom = torch.nn.Sequential(bottom, torch.nn.Tanh()).double()
    return net


@pytest.mark.parametrize("members", [1, 3])
def test_a_known_net_is_inverted_and_another_is_not(members: int) -> None:
    table = make_problem([MIXED], ["F"] * 6 + ["P"] * 2).tables[0]
    single = [smooth_net(seed) for seed in range(2 * members)]
    net, other = (cast(PartyNet, stack(each)) for each in (single[:members], single[members:]))
    E = embed_rows(net, table, members)
    alone = [each.embed(each.encode(table), table.observed) for each in single[:members]]
    torch.testing.assert_close(E, torch.cat(alone, 1))
    found, wrong = (invert(each, E, table.observed, 100, members) for each in (net, other))
    assert (score_features(found, table).r2 or 0) > 0.99
    assert (score_features(wrong, table).r2 or 0) < 0.2


def test_differences_are_derivatives() -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
    J = jacobian(lambda x: torch.stack([x[:, 0] ** 2, x.prod(1), x[:, 1]], 1), x)
    expected = [[[2, 0], [2, 1], [0, 1]], [[6, 0], [4, 3], [0, 1]]]
    assert torch.allclose(J, torch.tensor(expected, dtype=torch.float64), atol=1e-6)
