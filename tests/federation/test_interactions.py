"""How much features interact in a party's net."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.problems import MIXED, NUMBERS, sample_table
from xvfl.config import LossConfig, NetConfig, PrivacyConfig
from xvfl.federation.build import build_parties
from xvfl.federation.interactions import (
    GROUP_ROWS,
    GROUPS,
    InteractionProbe,
    flat_weights,
    relative_change,
)
from xvfl.federation.party_worker import PartyWorker
from xvfl.methods.members import member_seeds
from xvfl.primitives.layout import Layout

NET = NetConfig(embedding_dim=8, hidden_dim=64, number_embedding_dim=0, skip_rank=4, members=1)


def make_worker(layout: Layout, members: int = 1) -> PartyWorker:
    config, privacy = replace(NET, members=members), PrivacyConfig("no_gradients")
    nets = build_parties({"a": layout}, config, LossConfig(), [7], privacy=privacy)
    table = sample_table(layout, "FP" * 50, torch.Generator().manual_seed(0))
    table = replace(table, values=table.values.float())
    return PartyWorker("a", nets["a"], table, member_seeds([7], members))


def slow_shares(worker: PartyWorker) -> list[float]:
    """The share of each member, row by row."""
    probe, net, members = InteractionProbe(worker), worker.net, len(worker.seeds)
    parts: dict[str, list[Tensor]] = {"S": [], "T": [], "both": []}
    for i in range(GROUPS * GROUP_ROWS):
        row = worker.table.take(probe._handles[i].repeat(members))
        split = probe._split[i]
        for name, kept in (("S", split), ("T", ~split), ("both", split | ~split)):
            E = net.embed(net.encode(row), row.observed & kept)
            parts[name].append(torch.atanh(E.detach().double()))
    S, T, both = (torch.stack(each, 1) for each in parts.values())

    def variance(z: Tensor) -> float:
        groups = z.view(GROUPS, GROUP_ROWS, -1)
        return sum((float(each.var(0, correction=0).sum()) for each in groups), 0.0)

    return [
        variance(S[m] + T[m] - both[m]) / (variance(S[m]) + variance(T[m])) for m in range(members)
    ]


@pytest.mark.parametrize(("layout", "members"), [(NUMBERS, 1), (MIXED, 2)])
def test_the_share_equals_that_of_single_rows(layout: Layout, members: int) -> None:
    worker = make_worker(layout, members)
    share, slow = InteractionProbe(worker).measure(), slow_shares(worker)
    assert share == pytest.approx(min(slow), rel=1e-3) and share > 0.02


@torch.no_grad()
@pytest.mark.parametrize("members", [1, 2])
def test_the_norm_is_that_of_the_smallest_layer(members: int) -> None:
    worker = make_worker(MIXED, members)
    probe = InteractionProbe(worker)
    assert probe.measure_norms() == 1
    weights = [each for name, each in worker.net.bottom.named_parameters() if "weight" in name]
    for scale, weight in zip((0.9, 2.0, 0.6, 1.0), weights, strict=False):
        weight.mul_(scale)
    assert probe.measure_norms() == pytest.approx(0.6)


@torch.no_grad()
def test_an_additive_net_has_no_interactions_and_a_constant_one_is_harmless() -> None:
    worker = make_worker(MIXED)
    skip = worker.net.bottom.get_submodule("0")
    for weight in skip.get_submodule("net").parameters():
        weight.zero_()
    assert InteractionProbe(worker).measure() < 1e-10
    for weight in worker.net.parameters():
        weight.zero_()
    assert InteractionProbe(worker).measure() == 1


@torch.no_grad()
def test_interactions_are_measured_again_after_a_change_of_the_weights() -> None:
    worker = make_worker(NUMBERS)
    probe, before = InteractionProbe(worker), flat_weights(worker.net.bottom)
    assert probe.due and probe.measure() > 0 and not probe.due
    for weight in worker.net.bottom.parameters():
        weight.mul_(0.99)
    change = relative_change(before, flat_weights(worker.net.bottom))
    assert change == pytest.approx(0.01, rel=1e-3)
    probe.change += change
    assert not probe.due
    probe.change += float("nan")
    assert probe.due
