"""Members: each one trains as it would alone, and predictions are means of log-probabilities."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from tests.methods.test_every_method import EVERY, named
from tests.options import resolved
from tests.problems import CLASSES, MIXED, NUMBERS, make_problem
from xvfl import XVFLClassifier
from xvfl.config import LossConfig, NetConfig, PrivacyConfig
from xvfl.errors import ConfigError
from xvfl.federation.fused import FusedFederation
from xvfl.federation.party_worker import PartyWorker
from xvfl.methods.base import Method
from xvfl.methods.build import build_method, build_parties, shares_inputs
from xvfl.methods.members import member_seeds
from xvfl.nets.row_wise import apply_to_rows
from xvfl.nets.stacked import StackedLinear, stack
from xvfl.primitives.layout import Feature, Layout
from xvfl.primitives.rows import Rows
from xvfl.primitives.task import Classification

NET = NetConfig(embedding_dim=4, hidden_dim=6, number_embedding_dim=3, members=1)
RUN_SEEDS = (5, 6)


def federation_of(
    loss: LossConfig,
    net: NetConfig,
    seeds: list[int],
    layout: Layout = NUMBERS,
    shared_inputs: bool = False,
) -> tuple[Method, FusedFederation, Rows]:
    """Build a federation in double precision, with rows of every kind."""
    holdings = ["FF", "FP", "PF", "F-", "GF", "PP", "FF", "-F"] * 2
    problem = make_problem([layout] * 2, holdings, seed=1)
    layouts = {"p0": layout, "p1": layout}
    net, loss = resolved(net).net, resolved(loss=loss).loss
    with torch.random.fork_rng(devices=[]):
        parties = build_parties(layouts, net, loss, seeds, shared_inputs=shared_inputs)
        method = build_method(2, Classification(range(CLASSES)), False, net, loss, seeds)
    method.heads.double()
    each = zip(layouts, problem.tables, strict=True)
    weight, own = loss.reconstruction_weight, member_seeds(seeds, net.members)
    sides = [PartyWorker(n, parties[n].double(), table, own, weight) for n, table in each]
    return method, FusedFederation(sides), problem.rows


def gradients(method: Method, federation: FusedFederation, rows: Rows, runs: int) -> list[Tensor]:
    """Run a step as the trainer does; return the gradients of all weights in a fixed order."""
    federation.train(True)
    federation.backward(torch.stack(list(method.loss(federation, rows).values())).sum() * runs)
    nets = [*(worker.net for worker in federation.workers), method.heads]
    return [
        torch.zeros_like(weight) if weight.grad is None else weight.grad
        for net in nets
        for weight in net.parameters()
    ]


@pytest.mark.parametrize("loss", EVERY, ids=named)
def test_a_member_gets_the_gradients_that_it_gets_alone(loss: LossConfig) -> None:
    """Two runs with three members each, against six single nets."""
    net = replace(NET, members=3)
    method, federation, rows = federation_of(loss, net, list(RUN_SEEDS))
    halves = torch.arange(8), torch.tensor([8, 8, 10, 11, 9, 9, 8, 15])
    both = replace(rows.take(torch.cat(halves), rows.step), runs=2)
    together = gradients(method, federation, both, runs=2)
    number = 0
    for run, index in enumerate(halves):
        for seed in member_seeds([RUN_SEEDS[run]], 3):
            alone = federation_of(loss, NET, [seed])
            expected = gradients(alone[0], alone[1], rows.take(index, rows.step), runs=1)
            for all_members, one in zip(together, expected, strict=True):
                torch.testing.assert_close(all_members[number].reshape(one.shape), one)
            number += 1


@pytest.mark.parametrize("layout", [NUMBERS, MIXED], ids=["numbers", "mixed"])
@pytest.mark.parametrize("shared", [True, False])
def test_stored_weights_tell_whether_members_share_inputs(layout: Layout, shared: bool) -> None:
    """Models of version 0.3, which do not, are loaded by this."""
    net, loss = resolved(replace(NET, members=2)).net, resolved().loss
    nets = build_parties({"p": layout}, net, loss, [0], shared_inputs=shared)
    assert shares_inputs(nets["p"].state_dict()) == shared


@pytest.mark.parametrize("layout", [NUMBERS, MIXED], ids=["numbers", "mixed"])
@pytest.mark.parametrize("loss", EVERY, ids=named)
def test_members_that_share_inputs_train_as_members_with_equal_ones(
    loss: LossConfig, layout: Layout
) -> None:
    """Two runs with three members each; the members of the twin have equal encodings and masks."""
    members, runs = 3, len(RUN_SEEDS)
    net = replace(NET, members=members)
    method, federation, rows = federation_of(loss, net, list(RUN_SEEDS), layout, True)
    twin_method, twin, _ = federation_of(loss, net, list(RUN_SEEDS), layout)
    twin_method.heads.load_state_dict(method.heads.state_dict())
    for one, other in zip(federation.workers, twin.workers, strict=True):
        state, shapes = one.net.state_dict(), other.net.state_dict()
        repeats = {name: len(shapes[name]) // len(each) for name, each in state.items()}
        assert sorted(set(repeats.values())) == [1, members]
        other.net.load_state_dict(
            {name: each.repeat_interleave(repeats[name], 0) for name, each in state.items()}
        )
        other.seeds = tuple(seed for seed in one.seeds[::members] for _ in range(members))
    halves = torch.arange(8), torch.tensor([8, 8, 10, 11, 9, 9, 8, 15])
    both = replace(rows.take(torch.cat(halves), rows.step), runs=runs)
    expected = gradients(twin_method, twin, both, runs)
    for found, each in zip(gradients(method, federation, both, runs), expected, strict=True):
        of_members = each.view(len(found), -1, *each.shape[1:])
        torch.testing.assert_close(found, of_members.sum(1))
    for trained in (federation, twin):
        trained.train(False)
    for mode in method.modes:
        torch.testing.assert_close(
            method.logits(federation, both, mode, 1), twin_method.logits(twin, both, mode, 1)
        )


@pytest.mark.parametrize("loss", EVERY, ids=named)
def test_predictions_are_mean_log_probabilities(loss: LossConfig) -> None:
    method, federation, rows = federation_of(loss, replace(NET, members=2), [5])
    federation.train(False)
    alone = [federation_of(loss, NET, [seed]) for seed in member_seeds([5], 2)]
    for mode in method.modes:
        expected = []
        for one, parties, _ in alone:
            parties.train(False)
            expected.append(one.logits(parties, rows, mode, 1).log_softmax(-1))
        found = method.logits(federation, rows, mode, 1)
        torch.testing.assert_close(found, torch.stack(expected).mean(0))


def test_one_member_is_the_plain_method() -> None:
    assert member_seeds([7, 8], 1) == [7, 8]
    method, _, _ = federation_of(LossConfig(), NET, [5])
    assert type(method).__name__ == "XVFL"
    assert len(set(member_seeds([7, 8], 3))) == 6


def test_stacked_nets_skip_rows_only_if_all_need_the_same() -> None:
    torch.manual_seed(0)
    net = stack([torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)])
    assert isinstance(net, StackedLinear)
    x, seen = torch.randn(8, 3), []

    def apply(rows: Tensor) -> Tensor:
        seen.append(len(rows))
        out: Tensor = net(rows)
        return out

    same = torch.tensor([True, False, True, False] * 2)
    other = torch.tensor([True, False, True, False, False, True, True, False])
    none = torch.zeros(8, dtype=torch.bool)
    expected = net(x)
    for needed in (same, other, none):
        out = apply_to_rows(apply, needed, x, stacked=2)
        torch.testing.assert_close(out[needed], expected[needed])
    assert seen == [4, 8, 0]


def test_the_embedding_of_a_missing_number_is_zero_and_a_present_one_is_not() -> None:
    layout = Layout((Feature("x", "numeric", 1), Feature("job", "category", 2)))
    options = resolved(NetConfig(number_embedding_dim=8))
    net = build_parties({"p": layout}, options.net, options.loss, [0])["p"]
    numbers = net.bottom[0]  # type: ignore[index]
    row = torch.tensor([[0.3, 1.0, 0.0]]).repeat(2, 1)
    given = torch.tensor([[True, True], [False, True]])
    out = numbers(net.given(row, given))
    assert out.shape == (2, 5 + 8)
    assert out[0, 5:].abs().sum() > 0 and out[1, 5:].abs().sum() == 0
    torch.testing.assert_close(out[:, :5], net.given(row, given))


def test_members_are_refused_where_they_cannot_be_built() -> None:
    image = {"p": Layout(image=(1, 8, 8))}
    several = NetConfig(members=2)
    net, loss = resolved(several).net, LossConfig()
    with pytest.raises(ConfigError, match="members: expected 1 with images, got 2"):
        build_parties(image, net, loss, [0])
    with pytest.raises(ConfigError, match="members: expected 1 with images, got 2"):
        resolved(several, image=True)
    layouts = {"p": NUMBERS}
    with pytest.raises(ConfigError, match="members: expected 1 with custom nets"):
        build_parties(layouts, net, loss, [0], {"p": torch.nn.Identity()})
    with pytest.raises(ConfigError, match="members: expected 1 with custom nets"):
        resolved(several, custom_nets=True)
    with pytest.raises(ConfigError, match="members: expected 1 with label_protection"):
        resolved(several, privacy=PrivacyConfig(epsilon=1.0))


@pytest.mark.slow
def test_a_classifier_with_members_predicts_completes_and_loads(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    index = pd.Index([f"r{i}" for i in range(300)], name="id")
    a = pd.DataFrame({"x": rng.normal(size=300), "c": rng.choice(list("uvw"), 300)}, index)
    b = pd.DataFrame({"z": rng.normal(size=300), "code": [f"k{i % 90}" for i in range(300)]}, index)
    y = pd.Series((a["x"] + b["z"] > 0).astype(int), index)
    a.loc[rng.random(300) < 0.1, "x"] = np.nan
    b.loc[rng.random(300) < 0.1, ["z", "code"]] = np.nan
    tables = {"a": a, "b": b}
    model = XVFLClassifier(members=3, net={"number_embedding_dim": 4}, epochs=30)
    model.fit(tables, y)
    assert model.score(tables, y) > 0.7
    filled = model.complete(tables, party="b")
    assert not filled.isna().any().any() and set(filled["code"]) <= set(b["code"].dropna())
    model.save(tmp_path / "run")
    again = XVFLClassifier.load(tmp_path / "run")
    np.testing.assert_array_equal(again.predict_proba(tables), model.predict_proba(tables))
