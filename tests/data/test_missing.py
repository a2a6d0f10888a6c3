"""Missing features drawn on purpose: exact counts, nested rates, named randomness."""

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from xvfl.data.missing import (
    drop_features,
    exact_gaps,
    incomplete_parties,
    scenario,
)
from xvfl.streams import Draws, stream

SEEDS = st.integers(0, 2**32)
SHARES = st.floats(0, 1)
FEATURES = st.lists(st.integers(1, 9), min_size=2, max_size=5)


@given(st.integers(1, 60), FEATURES, SHARES, SHARES, SEEDS)
def test_scenarios_have_exact_counts(
    rows: int, features: list[int], overlap: float, rate: float, seed: int
) -> None:
    observed, incomplete = scenario(rows, features, overlap, rate, seed)
    assert incomplete.shape == (rows, len(features))
    assert [mask.shape for mask in observed] == [(rows, count) for count in features]
    aligned = ~incomplete.any(1)
    assert aligned.sum() == round(overlap * rows)
    assert not incomplete.all(1).any(), "in every row some party is complete"
    for party, (mask, count) in enumerate(zip(observed, features, strict=True)):
        missing = (~mask).sum(1)
        assert set(missing[incomplete[:, party]].tolist()) <= {round(rate * count)}
        assert not missing[~incomplete[:, party]].any()


@pytest.mark.parametrize(
    ("overlap", "rate", "aligned", "missing"),
    [(0.4, 0.3, 40, 3), (0.0, 1.0, 0, 10), (1.0, 0.5, 100, 5), (0.25, 0.0, 25, 0)],
)
def test_counts_by_hand(overlap: float, rate: float, aligned: int, missing: int) -> None:
    observed, incomplete = scenario(100, [10, 10, 10], overlap, rate, seed=3)
    assert int((~incomplete.any(1)).sum()) == aligned
    pairs = torch.stack([(~mask).sum(1) for mask in observed], 1)
    assert pairs[incomplete].tolist() == [missing] * int(incomplete.sum())
    assert pairs[~incomplete].sum() == 0


@given(st.integers(1, 40), FEATURES, SHARES, SHARES, SHARES, SEEDS)
def test_every_rate_hits_the_same_rows_and_a_higher_one_only_adds_gaps(
    rows: int, features: list[int], overlap: float, one: float, two: float, seed: int
) -> None:
    low, high = sorted((one, two))
    few, who = scenario(rows, features, overlap, low, seed)
    many, again = scenario(rows, features, overlap, high, seed)
    assert torch.equal(who, again)
    for less, more in zip(few, many, strict=True):
        assert not (more & ~less).any()


@given(st.integers(1, 40), FEATURES, SEEDS)
def test_the_seed_names_a_scenario(rows: int, features: list[int], seed: int) -> None:
    torch.manual_seed(0)
    first = scenario(rows, features, 0.3, 0.5, seed)
    torch.manual_seed(1)
    torch.rand(5)
    second = scenario(rows, features, 0.3, 0.5, seed)
    assert torch.equal(first[1], second[1])
    assert all(map(torch.equal, first[0], second[0]))


def test_another_seed_is_another_scenario() -> None:
    one, two = (scenario(50, [8, 8, 8], 0.3, 0.5, seed) for seed in (0, 1))
    assert not torch.equal(one[1], two[1])
    assert not torch.equal(one[0][0], two[0][0])


def test_each_party_has_its_own_draws() -> None:
    (first, second, _), incomplete = scenario(50, [8, 8, 8], 0.3, 0.5, seed=0)
    both = incomplete[:, 0] & incomplete[:, 1]
    assert both.sum() > 3
    assert not torch.equal(first[both], second[both])


@pytest.mark.parametrize("parties", [2, 3, 4])
def test_incomplete_subsets_are_uniform(parties: int) -> None:
    rows = 20_000
    drawn = incomplete_parties(rows, parties, 0.0, stream("cpu", 5))
    counts = Counter(map(tuple, drawn.tolist()))
    subsets = 2**parties - 2
    assert len(counts) == subsets
    expected = rows / subsets
    chi2 = sum((count - expected) ** 2 / expected for count in counts.values())
    assert chi2 < subsets + 6 * (2 * subsets) ** 0.5


def test_aligned_rows_and_gaps_are_uniform() -> None:
    aligned = torch.stack(
        [~incomplete_parties(10, 2, 0.3, stream("cpu", seed)).any(1) for seed in range(2000)]
    ).sum(0)
    assert ((aligned - 600).abs() < 5 * (2000 * 0.3 * 0.7) ** 0.5).all()
    missing = (~exact_gaps(20_000, 7, 3 / 7, stream("cpu", 0))).sum(0)
    assert ((missing - 20_000 * 3 / 7).abs() < 5 * (20_000 * 12 / 49) ** 0.5).all()


@given(st.integers(1, 30), st.integers(1, 12), SEEDS)
def test_dropping_never_adds(rows: int, raw: int, seed: int) -> None:
    observed = torch.rand(rows, raw, generator=torch.Generator().manual_seed(seed)) < 0.6
    before = observed.clone()
    kept = drop_features(observed, drawn(seed, observed))
    assert kept.shape == observed.shape and kept.dtype == torch.bool
    assert not (kept & ~observed).any()
    assert torch.equal(observed, before)


def test_the_rate_is_drawn_per_row_between_0_and_1() -> None:
    observed = torch.ones(4000, 200, dtype=torch.bool)
    share = drop_features(observed, drawn(0, observed)).float().mean(1).sort().values
    uniform = (torch.arange(4000) + 0.5) / 4000
    assert (share - uniform).abs().max() < 0.05


def drawn(seed: int, observed: Tensor) -> Tensor:
    rows, raw = observed.shape
    return Draws([seed], "mask").uniform(0, rows, 1 + raw, observed.device)
