"""Masks: the share of copies that keep all features, and how it is chosen."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.options import resolved
from xvfl.config import LossConfig, NetConfig, TrainConfig
from xvfl.errors import ConfigError
from xvfl.federation.party_worker import PartyWorker
from xvfl.methods.build import build_parties
from xvfl.primitives.layout import Feature, Layout
from xvfl.primitives.masks import drop_features, median_missing_share, unmasked_share
from xvfl.primitives.random import CounterRNG
from xvfl.primitives.rows import PartyTable

NUMBERS = Layout(tuple(Feature(name, "numeric", 1) for name in "abc"))
MANY = Layout(tuple(Feature(name, "numeric", 1) for name in "abcde"))
HASHED = Layout((Feature("a", "numeric", 1), Feature("b", "hashed", 4, buckets=8)))


def slowly(observed: Tensor, uniform: Tensor, unmasked: list[float]) -> Tensor:
    """Drop features row by row, cell by cell."""
    kept = observed.clone()
    for row, share in enumerate(unmasked):
        first = float(uniform[row, 0])
        rate = 0.0 if first < share else (first - share) / (1 - share)
        for feature in range(observed.shape[1]):
            if float(uniform[row, 1 + feature]) < rate:
                kept[row, feature] = False
    return kept


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 0.9])
def test_masks_equal_those_of_the_slow_twin(share: float) -> None:
    observed = torch.rand(200, 5, generator=torch.Generator().manual_seed(1)) < 0.8
    uniform = CounterRNG([0], "mask").uniform(0, 200, 6, torch.device("cpu"))
    assert torch.equal(
        drop_features(observed, uniform, share), slowly(observed, uniform, [share] * 200)
    )
    by_row = torch.tensor([[0.0], [share]]).repeat(100, 1)
    assert torch.equal(
        drop_features(observed, uniform, by_row), slowly(observed, uniform, [0.0, share] * 100)
    )


def test_the_share_of_unmasked_rows_and_the_rates_of_the_others() -> None:
    observed = torch.ones(8000, 200, dtype=torch.bool)
    uniform = CounterRNG([0], "mask").uniform(0, 8000, 201, observed.device)
    kept = drop_features(observed, uniform, 0.5).float().mean(1)
    masked = kept[kept < 1].sort().values
    assert abs(len(masked) / 8000 - 0.5) < 0.05
    spread = (torch.arange(len(masked)) + 0.5) / len(masked)
    assert (masked - spread).abs().max() < 0.05


def test_the_less_is_missing_the_more_copies_are_unmasked() -> None:
    shares = [unmasked_share(MANY, missing) for missing in (0.0, 0.05, 0.1, 0.8)]
    assert shares == [0.5, 0.25, 0.0, 0.0]
    assert unmasked_share(HASHED, 0.0) == 0.0


def test_half_of_the_copies_of_few_features_are_unmasked() -> None:
    assert [unmasked_share(NUMBERS, missing) for missing in (0.0, 0.8)] == [0.5, 0.5]


def test_the_median_feature_decides_what_is_missing() -> None:
    assert median_missing_share(torch.tensor([100, 90, 20]), 100) == pytest.approx(0.1)
    assert median_missing_share(torch.tensor([100, 90, 80, 20]), 100) == pytest.approx(0.15)
    assert median_missing_share(torch.tensor([0, 0]), 0) == 0.0


@pytest.mark.parametrize("share", [-0.1, 1.0, 5.0, float("nan")])
def test_a_share_out_of_range_is_rejected(share: float) -> None:
    with pytest.raises(ConfigError, match="unmasked_copies"):
        LossConfig(unmasked_copies=share)


def loss_with(interval: int, **options: Any) -> LossConfig:
    train = TrainConfig(completion_interval=interval)
    return resolved(loss=LossConfig(**options), train=train).loss


def test_steps_without_completion_change_the_defaults() -> None:
    assert loss_with(4).unmasked_copies is None
    assert loss_with(4, method="laser+mask").unmasked_copies is None
    assert loss_with(4, method="laser").unmasked_copies == 0.0
    assert loss_with(1).unmasked_copies == 0.0
    assert loss_with(4, unmasked_copies=0.3).unmasked_copies == 0.3
    assert [loss_with(interval).guidance for interval in (1, 4)] == [0.5, 1.0]
    assert loss_with(4, guidance=0.25).guidance == 0.25


def test_every_run_of_a_stack_has_its_own_share() -> None:
    rows = 50
    observed = torch.ones(2 * rows, 3, dtype=torch.bool)
    table = PartyTable(
        NUMBERS, torch.zeros(2 * rows, 3), torch.zeros(2 * rows, 0, dtype=torch.long), observed
    )
    masks = []
    for seeds, shares, some in (([3, 4], [0.0, 0.5], slice(None)), ([4], 0.5, slice(rows, None))):
        worker = _worker(table, seeds, shares)
        masks.append(worker._sample_mask(observed[some], 7, 0))
    assert torch.equal(masks[0][rows:], masks[1])
    whole = masks[0].all(1).view(2, rows).float().mean(1)
    assert whole[1] > whole[0] + 0.2


def _worker(table: PartyTable, seeds: list[int], shares: float | list[float]) -> PartyWorker:
    options = resolved(NetConfig(4, 8), LossConfig(method="laser"))
    nets = build_parties({"a": table.layout}, options.net, options.loss, seeds)
    return PartyWorker("a", nets["a"], table, seeds, unmasked=shares)
