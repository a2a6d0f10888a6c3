"""Missing features drawn on purpose: exact counts, nested rates, named randomness."""

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from xvfl.errors import ConfigError
from xvfl.primitives.layout import Feature, Layout
from xvfl.primitives.masks import drop_features
from xvfl.primitives.random import CounterRNG, named_generator
from xvfl_lab.scenarios import Scenario, blocks, hide_uniformly, incomplete_parties

SEEDS = st.integers(0, 2**32)
SHARES = st.floats(0, 1)
FEATURES = st.lists(st.integers(1, 9), min_size=2, max_size=5)


def scenario(
    rows: int, features: list[int], overlap: float, rate: float, seed: int
) -> tuple[list[Tensor], Tensor]:
    """Sample masks of uniformly missing features, given only their number at each party."""
    layouts = [Layout(tuple(Feature(str(i), "numeric", 1) for i in range(p))) for p in features]
    return Scenario(overlap, rate).sample(rows, layouts, seed)


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
    drawn = incomplete_parties(rows, parties, 0.0, named_generator("cpu", 5))
    counts = Counter(map(tuple, drawn.tolist()))
    subsets = 2**parties - 2
    assert len(counts) == subsets
    expected = rows / subsets
    chi2 = sum((count - expected) ** 2 / expected for count in counts.values())
    assert chi2 < subsets + 6 * (2 * subsets) ** 0.5


def test_aligned_rows_and_gaps_are_uniform() -> None:
    aligned = torch.stack(
        [
            ~incomplete_parties(10, 2, 0.3, named_generator("cpu", seed)).any(1)
            for seed in range(2000)
        ]
    ).sum(0)
    assert ((aligned - 600).abs() < 5 * (2000 * 0.3 * 0.7) ** 0.5).all()
    missing = (~hide_uniformly(20_000, 7, 3 / 7, named_generator("cpu", 0))).sum(0)
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
    return CounterRNG([seed], "mask").uniform(0, rows, 1 + raw, observed.device)


def table(features: int) -> Layout:
    return Layout(tuple(Feature(str(i), "numeric", 1) for i in range(features)))


KINDS = st.sampled_from(["uniform", "blocks"])


@given(st.integers(1, 40), FEATURES, SHARES, SHARES, KINDS, SEEDS)
def test_every_kind_hits_the_same_rows_with_the_same_counts(
    rows: int, features: list[int], overlap: float, rate: float, kind: str, seed: int
) -> None:
    layouts = [table(count) for count in features]
    observed, incomplete = Scenario(overlap, rate, kind).sample(rows, layouts, seed)  # type: ignore[arg-type]
    plain, who = scenario(rows, features, overlap, rate, seed)
    assert torch.equal(incomplete, who)
    for mask, other in zip(observed, plain, strict=True):
        assert torch.equal(mask.sum(1), other.sum(1))
        assert kind == "blocks" or torch.equal(mask, other)


def slow_uniform(rows: int, features: list[int], rate: float, seed: int) -> list[Tensor]:
    """Draw each party's masks from its named stream, plainly: those of lowest rank go missing."""
    who = incomplete_parties(rows, len(features), 0.4, named_generator("cpu", seed, "who"))
    masks = []
    for i, count in enumerate(features):
        drawn = torch.rand(rows, count, generator=named_generator("cpu", seed, "what", i))
        rank = drawn.argsort(1).argsort(1)
        masks.append((rank >= round(rate * count)) | ~who[:, i : i + 1])
    return masks


@given(st.integers(1, 40), FEATURES, SHARES, SEEDS)
def test_uniform_masks_are_named_by_seed_and_party(
    rows: int, features: list[int], rate: float, seed: int
) -> None:
    found, _ = scenario(rows, features, 0.4, rate, seed)
    assert all(map(torch.equal, found, slow_uniform(rows, features, rate, seed)))


@given(st.integers(1, 60), st.integers(1, 9), SHARES, SHARES, SHARES, SEEDS)
def test_above_misses_exactly_the_largest_known_values(
    rows: int, features: int, overlap: float, rate: float, gaps: float, seed: int
) -> None:
    rng = torch.Generator().manual_seed(seed)
    # Few distinct values: ties are the rule.
    values = torch.randint(0, 4, (rows, features), generator=rng).float()
    values[torch.rand(values.shape, generator=rng) < gaps] = torch.nan
    drawn = Scenario(overlap, rate, "above").sample(rows, [table(features)] * 2, seed, [values] * 2)
    for party, mask in enumerate(drawn[0]):
        here = drawn[1][:, party]
        assert mask[~here].all()
        for kept, column in zip(mask[here].T, values[here].T, strict=True):
            known = ~column.isnan()
            assert (~kept).sum() == round(rate * int(known.sum()))
            assert known[~kept].all()
            if (~kept).any() and (kept & known).any():
                assert column[~kept].min() >= column[kept & known].max()


def test_above_draws_among_equal_values() -> None:
    values = [torch.zeros(2000, 3)] * 2
    masks = [
        Scenario(0.0, 0.5, "above").sample(2000, [table(3)] * 2, seed, values)[0][0]
        for seed in (0, 1)
    ]
    assert not torch.equal(*masks)
    assert not torch.equal(masks[0][:, 0], masks[0][:, 1])


@given(st.integers(1, 30), FEATURES, SHARES, SHARES, st.sampled_from(["above", "blocks"]), SEEDS)
def test_a_higher_rate_only_adds_gaps_of_every_kind(
    rows: int, features: list[int], one: float, two: float, kind: str, seed: int
) -> None:
    rng = torch.Generator().manual_seed(seed)
    values = [torch.rand(rows, count, generator=rng) for count in features]
    layouts = [table(count) for count in features]
    few, many = (
        Scenario(0.3, rate, kind).sample(rows, layouts, seed, values)[0]  # type: ignore[arg-type]
        for rate in sorted((one, two))
    )
    assert not any((more & ~less).any() for less, more in zip(few, many, strict=True))


def test_blocks_of_a_table_are_neighbors_and_go_whole() -> None:
    assert blocks(table(9)).tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert blocks(table(1)).tolist() == [0]
    observed, incomplete = Scenario(0.0, 1 / 3, "blocks").sample(500, [table(9)] * 2, seed=0)
    for party, mask in enumerate(observed):
        parts = mask[incomplete[:, party]].reshape(-1, 3, 3)
        assert (parts.all(2) | (~parts).all(2)).all()
        assert (~parts[:, :, 0]).sum(0).min() > 50, "each block in its turn"


def test_blocks_of_an_image_are_square_patches() -> None:
    strip = Layout(image=(3, 8, 12))
    observed, incomplete = Scenario(0.0, 0.5, "blocks").sample(40, [strip] * 2, seed=0)
    assert blocks(strip).unique().tolist() == list(range(6))
    patches = observed[0][incomplete[:, 0]].reshape(-1, 2, 4, 3, 4)
    assert (patches.all((2, 4)) | (~patches).all((2, 4))).all()
    assert (~patches).sum((1, 2, 3, 4)).tolist() == [48] * len(patches)


@given(st.integers(1, 400), st.floats(0, 0.25), SEEDS)
def test_imbalance_has_exact_counts(rows: int, overlap: float, seed: int) -> None:
    scene = Scenario(overlap, 0.5, imbalance=0.8)
    observed, incomplete = scene.sample(rows, [table(4), table(6)], seed)
    aligned = round(overlap * rows)
    assert (~incomplete.any(1)).sum() == aligned
    assert not incomplete.all(1).any()
    first, second = (~incomplete).sum(0).tolist()
    assert first == min(max(round(0.8 * (1 + overlap) * rows), aligned), rows)
    assert first + second == rows + aligned
    assert ((~observed[0]).sum(1) == 2 * incomplete[:, 0]).all()
    assert ((~observed[1]).sum(1) == 3 * incomplete[:, 1]).all()


def test_imbalance_of_the_protocol() -> None:
    _, incomplete = Scenario(0.2, 0.5, imbalance=0.8).sample(1000, [table(4)] * 2, seed=1)
    assert (~incomplete).sum(0).tolist() == [960, 240]
    assert (~incomplete).all(1).sum() == 200


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ({"overlap": 1.2, "rate": 0}, "expected overlap from 0 to 1, got 1.2"),
        ({"overlap": 0.4, "rate": -1}, "expected rate from 0 to 1, got -1"),
        ({"overlap": 0.4, "rate": 0, "kind": "abov"}, "did you mean 'above'"),
        ({"overlap": 0.4, "rate": 0, "imbalance": 0.8}, "the overlap is at most 0.25"),
        ({"overlap": 0.1, "rate": 0, "imbalance": 1.0}, "expected imbalance between 0 and 1"),
    ],
)
def test_impossible_scenarios_are_refused(configs: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Scenario(**configs)


def test_scenarios_say_what_they_lack() -> None:
    with pytest.raises(ConfigError, match="needs the values"):
        Scenario(0.4, 0.5, "above").sample(5, [table(2)] * 2, seed=0)
    with pytest.raises(ConfigError, match="needs two parties, got 3"):
        Scenario(0.1, 0.5, imbalance=0.8).sample(5, [table(2)] * 3, seed=0)
