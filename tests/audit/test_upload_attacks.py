"""Attacks on uploads with a known answer."""

import pytest
import torch
from torch import Tensor

from tests.problems import MIXED, make_problem
from xvfl.audit.dials import add_noise, drop_numbers, project, quantize, rotate
from xvfl.audit.inference import label_attack, membership_attacks
from xvfl.audit.recovery import Columns, Measured, scored_columns, true_columns
from xvfl.audit.stolen_encoder import stolen_encoder_attack
from xvfl.audit.upload_attacks import (
    AttackOptions,
    attack_upload,
    collusion_attacks,
    two_version_attacks,
    unexplained,
)
from xvfl.nets.party_net import PartyNet

N, Q, D = 1200, 4, 16
OPTIONS = AttackOptions(known_rows=(10, 100), draws=1, max_rows=N)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def columns(seed: int = 0) -> Columns:
    """Independent uniform numbers."""
    every = torch.ones(N, Q, dtype=torch.bool)
    return Columns(torch.rand(N, Q, generator=rng(seed)), every, torch.ones(Q, dtype=torch.bool))


def linear_upload(true: Columns, copies: int = 4, seed: int = 1) -> Tensor:
    """Embed linearly; a copy has features set to 0, at a rate of its own."""
    code = torch.randn(Q, D, generator=rng(seed)) / 4
    views = [true.values]
    for number in range(copies):
        uniform = torch.rand(N, Q + 1, generator=rng(10 + number))
        views.append(true.values * (uniform[:, 1:] >= uniform[:, :1]))
    return torch.stack(views, 1) @ code


def found(measured: list[Measured]) -> dict[str, float]:
    return {each.attack: each.value for each in measured if each.metric == "numbers"}


def test_a_linear_upload_is_read_by_every_attack() -> None:
    true = columns()
    measured = attack_upload(linear_upload(true), true, OPTIONS)
    value = found(measured)
    assert min(value["ICA"], value["differences, ICA"], value["decoder, 10 rows"]) > 0.95
    assert value["differences, clusters"] > 0.95 and value["PCA"] > 0.5
    (r2,) = (m for m in measured if (m.attack, m.metric) == ("decoder, 100 rows", "R²"))
    assert r2.value > 0.99 and r2.control < 0.05


def test_controls_are_at_the_level_of_chance() -> None:
    true = columns()
    measured = attack_upload(linear_upload(true), true, OPTIONS)
    assert max(each.control for each in measured) < 0.1
    noise = torch.rand(N, 5, D, generator=rng(3))
    for each in attack_upload(noise, true, OPTIONS):
        assert each.value < 0.15 and each.excess < 0.08, each


def test_a_rotation_does_not_hide_columns_from_ica() -> None:
    true = columns()
    views = linear_upload(true, copies=0)
    turned = found(attack_upload(rotate(views, rng()), true, OPTIONS))
    assert turned["ICA"] > 0.95 and turned["decoder, 100 rows"] > 0.95


def test_without_copies_there_are_no_differences() -> None:
    true = columns()
    attacks = {each.attack for each in attack_upload(linear_upload(true, 0), true, OPTIONS)}
    assert not any(attack.startswith("differences") for attack in attacks) and "ICA" in attacks


def test_categories_are_scored_by_their_auc() -> None:
    codes = torch.randint(3, (N,), generator=rng())
    one_hot = torch.nn.functional.one_hot(codes, 3).float()
    true = Columns(one_hot, torch.ones(N, 3, dtype=torch.bool), torch.zeros(3, dtype=torch.bool))
    views = (one_hot + 0.01 * torch.randn(N, 3, generator=rng(1))).unsqueeze(1)
    measured = {m.attack: m for m in attack_upload(views, true, OPTIONS)}
    assert {each.metric for each in measured.values()} == {"categories"}
    assert measured["decoder, 100 rows"].value > 0.98


def test_collusion_reads_shared_and_other_columns() -> None:
    true = columns()
    measured = collusion_attacks(linear_upload(true, 0), true, OPTIONS)
    value = found(measured)
    assert value["collusion, shared columns"] > 0.99
    assert value["collusion, other columns, 0 rows"] > 0.95
    assert value["collusion, other columns, 100 rows"] > 0.95
    assert value["collusion, other columns, without the upload, 100 rows"] < 0.2


def test_what_is_explained_is_removed() -> None:
    given = torch.randn(200, 3, generator=rng())
    rest = torch.randn(200, 2, generator=rng(1))
    x = given @ torch.randn(3, 2, generator=rng(2)) + rest
    left = unexplained(x, given)
    assert float((left.T @ given).abs().max()) < 5
    torch.testing.assert_close(left, rest, atol=0.5, rtol=0)


def test_two_versions_reveal_at_least_what_one_does() -> None:
    true = columns()
    first, second = (linear_upload(true, 0, seed) for seed in (1, 2))
    value = found(two_version_attacks(first, second, true, OPTIONS))
    assert value["two versions, ICA"] > 0.95 and value["two versions, 100 rows"] > 0.95


def test_membership_of_identical_rows_is_a_coin_toss() -> None:
    views = linear_upload(columns())
    twice = torch.cat([views, views])
    learned = torch.arange(2 * N) < N
    for each in membership_attacks(twice, learned, twice[:, 0].norm(dim=1), OPTIONS):
        assert abs(each.value - 0.5) < 0.06, each


def test_membership_shows_where_embeddings_differ() -> None:
    views = linear_upload(columns())
    learned = torch.arange(N) % 2 == 0
    longer = torch.where(learned.view(-1, 1, 1), 2 * views, views)
    errors = torch.where(learned, 0.1, 1.0)
    measured = {m.attack: m.value for m in membership_attacks(longer, learned, errors, OPTIONS)}
    assert measured["membership, embeddings"] > 0.8
    assert measured["membership, classifier"] > 0.8
    assert measured["membership, stolen decoder"] == 1.0


def test_a_list_drawn_without_labels_shows_none() -> None:
    y = torch.randint(2, (4000,), generator=rng())
    blind = torch.rand(4000, generator=rng(1)) < 0.3
    (hidden,) = label_attack(blind, y)
    (shown,) = label_attack(y == 1, y)
    assert abs(hidden.value - 0.5) < 0.03 and shown.value == 1.0
    assert label_attack(blind, torch.full_like(y, -1)) == []


def smooth_net() -> PartyNet:
    net = make_problem([MIXED], ["F"]).parties[0]
    torch.manual_seed(0)
    bottom = torch.nn.Linear(net.layout.encoded + net.layout.raw, 40)
    net.bottom = torch.nn.Sequential(bottom, torch.nn.Tanh())
    torch.nn.init.normal_(bottom.weight, std=0.4)
    net.completer = torch.nn.Linear(40, net.layout.encoded)
    return net.float()


def test_a_stolen_encoder_is_inverted() -> None:
    table = make_problem([MIXED], ["F"] * 60 + ["P"] * 10).tables[0]
    table = type(table)(table.layout, table.values.float(), table.codes, table.observed)
    net = smooth_net()
    with torch.no_grad():
        E = net.embed(net.encode(table), table.observed)
    places = scored_columns(table)
    true = true_columns(table, places)
    options = AttackOptions(inversion_rows=70, inversion_steps=40)
    measured = {m.metric: m for m in stolen_encoder_attack(net, E, table, true, places, options)}
    assert measured["numbers"].value > 0.95 and measured["categories"].value > 0.9
    assert measured["numbers"].control < 0.4


def test_scored_columns_leave_out_hashed_and_rare_categories() -> None:
    table = make_problem([MIXED], ["F"] * 300).tables[0]
    places = scored_columns(table)
    true = true_columns(table, places)
    assert true.values.shape[1] <= table.layout.dense
    assert int(true.numeric.sum()) == 6  # One number, five columns of a date.
    assert len(scored_columns(table, limit=3)) <= 3


@pytest.mark.parametrize(
    ("transform", "expected"),
    [
        (quantize(4), lambda views: len(views[:, 0, 0].unique()) <= 4),
        (drop_numbers(0.5), lambda views: 0.4 < float((views == 0).float().mean()) < 0.6),
        (project(3), lambda views: views.shape[-1] == 3),
        (add_noise(1.0), lambda views: float(views.abs().max()) <= 1),
    ],
)
def test_dials_change_views(transform, expected) -> None:  # type: ignore[no-untyped-def]
    views = linear_upload(columns(), 2).tanh()
    changed = transform(views, rng())
    assert expected(changed) and not torch.equal(changed, views)


def test_a_rotation_keeps_angles_and_range() -> None:
    views = linear_upload(columns(), 1)
    turned = rotate(views, rng())
    cosine = torch.nn.functional.cosine_similarity
    torch.testing.assert_close(
        cosine(views[:50, 0], views[50:100, 1]), cosine(turned[:50, 0], turned[50:100, 1])
    )
    assert float(turned.abs().max()) <= 1.0 + 1e-6
