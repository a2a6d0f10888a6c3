"""CounterRNG: uniform, named, and the same for a run alone and among others."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from xvfl.primitives import random
from xvfl.primitives.random import CounterRNG, seed_modules

CPU = torch.device("cpu")


def test_numbers_are_uniform_and_uncorrelated() -> None:
    drawn = CounterRNG([0], "test").uniform(0, 20_000, 8, CPU).double()
    assert drawn.min() >= 0 and drawn.max() < 1
    counts = torch.histc(drawn, 64, 0, 1)
    expected = drawn.numel() / 64
    assert ((counts - expected).square() / expected).sum() < 63 + 5 * 126**0.5
    correlation = torch.corrcoef(drawn.T) - torch.eye(8, dtype=torch.float64)
    neighbors = torch.corrcoef(torch.stack([drawn[:-1, 0], drawn[1:, 0]]))[0, 1]
    assert correlation.abs().max() < 5 / 20_000**0.5 and neighbors.abs() < 5 / 20_000**0.5


def numbers(seeds: list[int], purpose: str, step: int | Tensor) -> Tensor:
    return CounterRNG(seeds, purpose).uniform(step, 12 * len(seeds), 5, CPU)


def test_seed_purpose_and_step_name_the_numbers() -> None:
    one = numbers([3], "mask", 7)
    assert torch.equal(one, numbers([3], "mask", 7))
    for other in (numbers([4], "mask", 7), numbers([3], "order", 7), numbers([3], "mask", 8)):
        assert (one == other).float().mean() < 0.1


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=5), st.integers(0, 2**40))
def test_a_run_draws_the_same_alone_and_among_others(seeds: list[int], step: int) -> None:
    together = numbers(seeds, "mask", step).chunk(len(seeds))
    for seed, found in zip(seeds, together, strict=True):
        assert torch.equal(found, numbers([seed], "mask", step))


def test_the_step_may_be_a_tensor() -> None:
    assert torch.equal(numbers([1], "mask", torch.tensor(9)), numbers([1], "mask", 9))


@pytest.mark.parametrize("columns", [1, 33])
def test_more_columns_do_not_change_the_first(columns: int) -> None:
    drawn = CounterRNG([1], "mask")
    assert torch.equal(drawn.uniform(0, 4, 40, CPU)[:, :columns], drawn.uniform(0, 4, columns, CPU))


@given(
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=0, max_size=50), st.sampled_from([7, 2**14])
)
def test_a_cpu_hashes_as_other_devices_do(keys: list[int], at_once: int) -> None:
    given = torch.tensor(keys, dtype=torch.int64)
    expected = ((random._mix(given) >> 40) & 0xFFFFFF).to(torch.float32) * 2.0**-24
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(random, "HASHED_AT_ONCE", at_once)
        assert torch.equal(random._to_unit(given), expected)


def first_weights(seed: int) -> torch.Tensor:
    seed_modules(CPU, seed, "bank", "init")
    return torch.nn.Linear(8, 8).weight.detach()


def test_secrets_that_agree_in_the_seed_of_the_generator_give_other_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`torch.manual_seed` uses 32 bits of a seed: a coordinator could try all of them."""
    secret = 1 << 255 | 12345
    weights = first_weights(secret)
    assert torch.equal(weights, first_weights(secret))
    monkeypatch.setattr("xvfl.primitives.random.derive_seed", lambda *name: 7)
    assert not torch.equal(first_weights(secret), first_weights(secret + 1))
    assert torch.equal(first_weights(1), first_weights(2))
