"""Distributions of filled cells: quantiles and probabilities against slow twins, and coverage."""

import math

import numpy as np
import pytest

from xvfl.model.cell_distributions import (
    GROUPS,
    LEVELS,
    CellDistributions,
    conformal_quantiles,
    fit_quantiles,
    fit_scores,
)

NO_CATEGORIES = (np.ones((0, GROUPS)), np.ones((0, GROUPS, 0)))


def numeric(completed: np.ndarray, true: np.ndarray, groups: np.ndarray) -> CellDistributions:
    """Fit one numeric column."""
    fitted = fit_quantiles(completed, completed, true, groups)
    return CellDistributions(*(each[None] for each in fitted), *NO_CATEGORIES)


def slow_interval(
    distributions: CellDistributions, group: int, completed: float, level: float
) -> tuple[float, float]:
    """Try all intervals between two stored quantiles, one cell at a time."""
    edges = distributions.edges[0, group]
    values = distributions.quantiles[0, group, sum(completed >= edge for edge in edges)]
    if distributions.relative[0, group]:
        values = [min(max(each + completed, 0), 1) for each in values]
    steps = round(level * (len(LEVELS) - 1))
    best = None
    for start in range(len(LEVELS) - steps):
        low, high = values[start], values[start + steps]
        center = abs(start - (len(LEVELS) - 1 - steps) / 2)
        key = (not low <= completed <= high, round(high - low, 9), center)
        if best is None or key < best[0]:
            best = (key, low, high)
    assert best is not None
    return min(best[1], completed), max(best[2], completed)


def test_intervals_are_those_of_the_slow_twin() -> None:
    rng = np.random.default_rng(0)
    completed = rng.random(4000)
    true = np.clip(completed + 0.1 * rng.gumbel(size=4000), 0, 1)
    groups = rng.integers(GROUPS, size=4000)
    fitted = numeric(completed, true, groups)
    for level in (0.5, 0.8, 0.9):
        low, high = fitted.interval(0, groups, completed, completed, level)
        for cell in range(0, 4000, 37):
            expected = slow_interval(fitted, groups[cell], completed[cell], level)
            assert (low[cell], high[cell]) == pytest.approx(expected)


def test_quantiles_have_conformal_ranks() -> None:
    values = np.random.default_rng(1).permutation(np.arange(1.0, 40.0))
    found = dict(zip(LEVELS.round(2).tolist(), conformal_quantiles(values), strict=True))
    # Of 39 values, a new one is below the fourth or above the 36th with probability 4/40 each.
    assert (found[0.1], found[0.5], found[0.9]) == (4, 20, 36)
    assert (found[0.0], found[1.0]) == (1, 39)


@pytest.mark.parametrize("level", [0.5, 0.8, 0.95])
def test_intervals_hold_their_share_in_every_group(level: float) -> None:
    """The spread differs between groups and grows with the completed value."""
    rng = np.random.default_rng(2)

    def sample(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        completed, groups = rng.random(count), rng.integers(GROUPS, size=count)
        spread = 0.02 + 0.05 * groups + 0.1 * completed
        return completed, np.clip(completed + spread * rng.normal(size=count), 0, 1), groups

    fitted = numeric(*sample(20_000))
    completed, true, groups = sample(20_000)
    low, high = fitted.interval(0, groups, completed, completed, level)
    inside = (low <= true) & (true <= high)
    for group in range(GROUPS):
        assert inside[groups == group].mean() == pytest.approx(level, abs=0.05)


def test_ties_do_not_widen_intervals() -> None:
    """Where 85 % of the cells are 0, the interval of level 0.8 is that value alone."""
    rng = np.random.default_rng(3)
    true = np.where(rng.random(5000) < 0.85, 0.0, rng.uniform(0.5, 1, 5000))
    completed, groups = rng.uniform(0.1, 0.2, 5000), np.zeros(5000, dtype=int)
    rounded = np.zeros(5000)
    fitted = fit_quantiles(completed, rounded, true, groups)
    column = CellDistributions(*(each[None] for each in fitted), *NO_CATEGORIES)
    low, high = column.interval(0, groups, completed, rounded, 0.8)
    assert not low.any() and not high.any()


def test_accurate_completers_have_short_intervals() -> None:
    """The intervals follow the completed value, not its bin."""
    rng = np.random.default_rng(6)
    completed, groups = rng.random(5000), np.zeros(5000, dtype=int)
    true = np.clip(completed + 0.01 * rng.normal(size=5000), 0, 1)
    low, high = numeric(completed, true, groups).interval(0, groups, completed, completed, 0.8)
    assert (high - low).max() < 0.04
    assert ((low <= true) & (true <= high)).mean() == pytest.approx(0.8, abs=0.03)


def test_draws_have_the_distribution_of_the_true_cells() -> None:
    rng = np.random.default_rng(4)
    completed, groups = rng.random(20_000), np.zeros(20_000, dtype=int)
    true = np.clip(completed + 0.1 * rng.normal(size=20_000), 0, 1)
    drawn = numeric(completed, true, groups).draw(0, groups, completed, rng)
    error, drawn_error = true - completed, drawn - completed
    assert drawn_error.std() == pytest.approx(error.std(), rel=0.15)
    assert np.quantile(drawn, [0.1, 0.5, 0.9]) == pytest.approx(
        np.quantile(true, [0.1, 0.5, 0.9]), abs=0.02
    )


def test_too_few_cells_give_no_interval() -> None:
    some = np.linspace(0, 1, 10)
    fitted = numeric(some, some, np.zeros(10, dtype=int))
    low, high = fitted.interval(0, np.zeros(2, dtype=int), some[:2], some[:2], 0.8)
    assert np.isnan(low).all() and np.isnan(high).all()
    assert fitted.draw(0, np.zeros(2, dtype=int), some[:2], np.random.default_rng(0)).tolist() == [
        0.0,
        pytest.approx(1 / 9),
    ]


@pytest.mark.slow
def test_probabilities_are_calibrated_by_group() -> None:
    """Wrong factors and biases of the scores are undone; the softmax equals the slow one."""
    rng = np.random.default_rng(5)
    logits = rng.normal(size=(20_000, 3))
    proba = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    option = (proba.cumsum(1) < rng.random((20_000, 1))).sum(1)
    groups = rng.integers(2, size=20_000)
    scores = logits * np.where(groups == 0, 2.0, 0.5)[:, None] + np.array([0.0, 1.0, 0.0])
    factors, biases = fit_scores(scores, option, groups, 3)
    assert factors[:2] == pytest.approx([0.5, 2.0], rel=0.1)
    assert (biases[:2, 1] - biases[:2, 0]) == pytest.approx([-0.5, -2.0], rel=0.15)
    none = np.zeros((0, GROUPS))
    fitted = CellDistributions(none, none, none, factors[None], biases[None])
    found = fitted.probabilities(0, groups, scores)
    assert np.abs(found - proba).max() < 0.05
    for row in range(3):
        factor, bias = factors[groups[row]], biases[groups[row]]
        weights = [math.exp(factor * s + b) for s, b in zip(scores[row], bias, strict=True)]
        assert found[row] == pytest.approx([weight / sum(weights) for weight in weights])


def test_columns_with_many_values_have_a_factor_alone() -> None:
    rng = np.random.default_rng(7)
    scores, option = rng.normal(size=(500, 9)), rng.integers(9, size=500)
    factors, biases = fit_scores(scores, option, np.zeros(500, dtype=int), 3)
    assert factors[0] < 0.2 and not biases.any(), "the scores say nothing"
