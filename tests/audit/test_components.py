"""Components and rank correlations on data with a known answer."""

import numpy as np
import pandas as pd
import torch
from hypothesis import given
from hypothesis import strategies as st

from xvfl.audit.components import (
    independent_directions,
    paired_rank_correlations,
    principal_directions,
    rank_correlations,
    ranks,
)

N = 2000


def sources(seed: int = 0) -> torch.Tensor:
    """Five independent columns of different distributions."""
    rng = np.random.default_rng(seed)
    columns = [
        rng.uniform(size=N),
        rng.exponential(size=N),
        rng.laplace(size=N),
        rng.integers(0, 2, N).astype(float),
        rng.beta(0.5, 0.5, N),
    ]
    return torch.from_numpy(np.stack(columns, 1)).float()


def mixed(x: torch.Tensor, width: int = 12) -> torch.Tensor:
    rng = torch.Generator().manual_seed(1)
    return (x - x.mean(0)) / x.std(0) @ torch.randn(x.shape[1], width, generator=rng)


def best(found: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return rank_correlations(ranks(found), x, torch.ones_like(x, dtype=torch.bool)).abs().amax(0)


def test_ica_separates_linear_mixtures_and_pca_does_not() -> None:
    x = sources()
    E, rng = mixed(x), torch.Generator().manual_seed(0)
    binary = torch.tensor([True, True, True, False, True])
    separated = best(E @ independent_directions(E, 12, rng), x)
    assert float(separated[binary].min()) > 0.97
    assert float(separated[3]) > 0.84  # ρ of two values and a continuous guess is below √0.75.
    assert float(best(E @ principal_directions(E, 12), x).mean()) < 0.9


def test_whitened_rows_are_uncorrelated_and_rank_deficient_directions_dropped() -> None:
    E = mixed(sources())
    z = (E - E.mean(0)) @ principal_directions(E, 12)
    assert z.shape[1] == 5
    torch.testing.assert_close(z.T @ z / N, torch.eye(5), atol=1e-3, rtol=0)
    assert principal_directions(E, 3).shape == (12, 3)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30))
def test_ranks_are_those_of_pandas(values: list[int]) -> None:
    x = torch.tensor(values, dtype=torch.float32).unsqueeze(1)
    expected = (pd.Series(values).rank().to_numpy() - 1) / len(values)
    np.testing.assert_allclose(ranks(x)[:, 0].numpy(), expected)


def test_correlations_are_those_of_pandas() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(300, 3)), rng.integers(0, 6, (300, 2)).astype(float)
    b[:, 0] += 2 * a[:, 0].round()
    frame = pd.DataFrame(np.concatenate([a, b], 1)).corr(method="spearman").to_numpy()
    every = torch.ones(300, 2, dtype=torch.bool)
    x, y = torch.from_numpy(a), torch.from_numpy(b)
    np.testing.assert_allclose(rank_correlations(ranks(x), y, every), frame[:3, 3:], atol=1e-6)
    paired = paired_rank_correlations(x[:, :2], y, every)
    np.testing.assert_allclose(paired, frame[:3, 3:].diagonal(), atol=1e-6)


def test_missing_values_do_not_count_and_constants_have_no_correlation() -> None:
    x = torch.arange(100.0).unsqueeze(1).repeat(1, 2)
    x[:, 1] = 3.0
    observed = torch.ones(100, 2, dtype=torch.bool)
    observed[:50, 0] = False
    spoiled = torch.where(observed, x, torch.randn(100, 2))
    for rho in (
        rank_correlations(ranks(x[:, :1]), spoiled, observed)[0],
        paired_rank_correlations(x, spoiled, observed),
    ):
        assert abs(float(rho[0]) - 1) < 1e-6 and bool(rho[1].isnan())
