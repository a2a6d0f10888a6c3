"""How filled values, classes and levels of intervals are chosen on hidden cells."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize

from xvfl.config import TableOptions
from xvfl.data.codecs import NumberCodec
from xvfl.data.encoder import TableEncoder
from xvfl.model.cell_classes import ClassCells, fit_classes, fit_factor
from xvfl.model.cell_distributions import (
    LEVELS,
    CellDistributions,
    bins_of,
    conformal_quantiles,
    fit_quantiles,
    shortest_between,
    shortest_intervals,
)
from xvfl.model.cell_fills import FillCells, _curves, fit_fill
from xvfl.model.cell_levels import CHECKED, NumberCells, fit_exact, fit_levels, nominal_level
from xvfl_serve.cell_model import GROUPS, Predicted, Target, Trees, log_softmax

COUNT = 6000
HALF = np.arange(COUNT) % 2 == 0
NONE = np.zeros(0)
NO_INTS = np.zeros(0, dtype=np.int64)
NO_TREES = Trees(NO_INTS, NO_INTS, NONE, NONE.astype(bool), NO_INTS, NO_INTS, NONE, 0)


def target(scores: np.ndarray, filled: np.ndarray, classes: int = 1) -> Target:
    """Return a target without trees."""
    columns, baseline = np.arange(classes), np.zeros(classes)
    return Target(
        0, 0, columns, NO_INTS, NO_TREES, baseline, scores, filled, NO_INTS, NO_INTS, NONE
    )


def codec_of(values: np.ndarray) -> NumberCodec:
    """Fit the codec of a column."""
    frame = pd.DataFrame({"x": values}, index=[f"r{i}" for i in range(len(values))])
    codec = TableEncoder.fit(frame, TableOptions(), "bank").codecs[0]
    assert isinstance(codec, NumberCodec)
    return codec


def filled_of(true: np.ndarray, predicted: np.ndarray, used: int = COUNT) -> np.ndarray:
    """Fill the cells of a column whose scores are its values' standard scores; fit on the first."""
    codec = codec_of(true)
    ends = np.array([true.min(), true.max()])
    scores = (ends - true.mean()) / true.std()
    start = target(scores, np.tile(codec.scale.apply(ends), GROUPS))
    found = Predicted(predicted[:, None], np.zeros(COUNT, dtype=np.int64))
    first = np.arange(used)
    encoded = codec.scale.apply(true)
    cells = FillCells(found.take(first), encoded[first], encoded, HALF[first], 1.0)
    fitted = fit_fill(start, codec, cells)
    values: np.ndarray = codec.scale.invert(fitted.fill(found))
    return values


def test_scores_that_predict_nothing_give_one_value() -> None:
    rng = np.random.default_rng(0)
    true = rng.normal(size=COUNT)
    filled = filled_of(true, rng.normal(size=COUNT))
    assert np.ptp(filled) < 0.2
    assert filled.mean() == pytest.approx(0, abs=0.1)


def test_scores_that_predict_are_followed() -> None:
    rng = np.random.default_rng(1)
    true = rng.normal(size=COUNT)
    filled = filled_of(true, 0.8 * (true + 0.5 * rng.normal(size=COUNT)))
    # The conditional mean has an error of 0.45 standard deviations.
    assert np.sqrt(((filled - true) ** 2).mean()) < 0.47


def test_a_skewed_number_is_not_filled_worse_than_by_its_median() -> None:
    rng = np.random.default_rng(2)
    true = rng.exponential(size=COUNT) ** 2
    filled = filled_of(true, rng.normal(size=COUNT))
    limit = np.abs(true - np.median(true)).mean()
    assert np.abs(true - filled).mean() < 1.02 * limit


def test_a_number_with_few_hidden_cells_is_filled_by_the_median_of_its_training_rows() -> None:
    """Few cells can mislead; over several samples, the error is about that of the median."""
    ratios = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        true = rng.exponential(size=COUNT)
        filled = filled_of(true, rng.normal(size=COUNT), 40)
        ratios.append(np.abs(true - filled).mean() / np.abs(true - np.median(true)).mean())
    assert np.mean(ratios) < 1.02


def test_curves_are_those_of_interp() -> None:
    rng = np.random.default_rng(9)
    points, values = np.sort(rng.normal(size=7)), rng.normal(size=(3, 7))
    at = np.append(rng.normal(size=50), points)
    expected = [np.interp(at, points, each) for each in values]
    np.testing.assert_allclose(_curves(at, points, values), expected)


@pytest.mark.parametrize("width", [0, 8, 16, 20])
def test_intervals_of_a_stored_level_are_those_of_any_level(width: int) -> None:
    rng = np.random.default_rng(10)
    table, inside = np.sort(rng.random((40, len(LEVELS))), 1), rng.random(40)
    expected = shortest_intervals(table, inside, LEVELS[width])
    np.testing.assert_allclose(shortest_between(table, inside, width), expected, atol=1e-9)


def sample_classes(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return log-probabilities with a wrong factor and bias, and classes."""
    logits = rng.normal(size=(COUNT, 3))
    proba = np.exp(log_softmax(logits))
    classes = (proba.cumsum(1) < rng.random((COUNT, 1))).sum(1)
    return 2 * logits + np.array([0.0, 3.0, 0.0]), classes


def test_factor_and_biases_are_those_of_a_general_optimizer() -> None:
    scores, classes = sample_classes(np.random.default_rng(3))

    def loss(at: np.ndarray) -> float:
        logs = log_softmax(scores * at[0] + at[1:])
        start = np.array([1.0, 0, 0, 0])
        return float(-logs[np.arange(COUNT), classes].sum() + ((at - start) ** 2).sum())

    expected = minimize(loss, np.array([1.0, 0, 0, 0])).x
    found = fit_factor(scores, classes)
    assert found == pytest.approx(expected, abs=1e-2)
    assert found[0] == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("informative", [True, False])
def test_classes_are_the_mode_unless_scores_predict_them(informative: bool) -> None:
    rng = np.random.default_rng(4)
    scores, classes = sample_classes(rng)
    if not informative:
        classes = (rng.random(COUNT) < 0.3).astype(np.int64)
    groups = np.zeros(COUNT, dtype=np.int64)
    cells = ClassCells(
        log_softmax(scores), groups, classes, HALF, 1.0, np.array([0.7, 0.3, 0.0]), 3
    )
    fitted = fit_classes(target(NONE, NONE, 3), cells)
    found = fitted.calibrate(log_softmax(scores), groups)
    assert np.exp(found).sum(1) == pytest.approx(np.ones(COUNT))
    if informative:
        assert len(set(found.argmax(1))) == 3
    else:
        assert (found.argmax(1) == 0).all()
        assert np.exp(found[0]) == pytest.approx([0.7, 0.3, 0.0], abs=0.03)


@dataclass(frozen=True)
class Column:
    """Hidden cells of a column of integers, scaled to [0, 1]."""

    completed: np.ndarray
    true: np.ndarray

    @classmethod
    def sample(cls, rng: np.random.Generator) -> "Column":
        """Return counts from 0 to 4, and predictions of them."""
        rates = rng.uniform(0.1, 2, COUNT)
        return cls(rates / 4, rng.poisson(rates).clip(max=4) / 4)


def rounded(encoded: np.ndarray) -> np.ndarray:
    """Round to fourths."""
    return np.rint(4 * encoded) / 4


def test_intervals_of_integers_hold_about_their_share() -> None:
    """With nominal levels, closed intervals of a count hold more."""
    rng = np.random.default_rng(5)
    groups, own, new = np.zeros(COUNT, dtype=np.int64), Column.sample(rng), Column.sample(rng)
    fitted = fit_quantiles(own.completed, rounded(own.completed), own.true, groups)
    levels = fit_levels(
        NumberCells(own.completed, own.true, groups, HALF, 1.0, rounded), np.zeros(COUNT)
    )
    none = np.zeros((0, GROUPS))
    shares = []
    for extra in ([], [levels[None]]):
        column = CellDistributions(*(each[None] for each in fitted), none, none[..., None], *extra)
        low, high = column.interval(0, groups, new.completed, rounded(new.completed), 0.8)
        inside = (rounded(low) - 1e-6 <= new.true) & (new.true <= rounded(high) + 1e-6)
        shares.append(inside.mean())
    assert shares[1] == pytest.approx(0.8, abs=0.04)
    assert abs(shares[1] - 0.8) <= abs(shares[0] - 0.8)


def test_levels_of_continuous_numbers_stay() -> None:
    rng = np.random.default_rng(6)
    completed = rng.random(COUNT)
    true = np.clip(completed + 0.1 * rng.normal(size=COUNT), 0, 1)
    cells = NumberCells(completed, true, np.zeros(COUNT, dtype=np.int64), HALF, 1.0, lambda x: x)
    assert np.abs(fit_levels(cells, np.zeros(COUNT)) - LEVELS).max() < 0.06


def test_large_steps_of_the_share_are_not_divided() -> None:
    """Ends of intervals between two values would be rounded to either."""
    grid = LEVELS[CHECKED]
    smooth = grid + 0.025 * ((grid > 0) & (grid < 1))
    assert nominal_level(smooth, 0.8, 0.7) == pytest.approx(0.775)
    step = np.where(grid > 0.59, 0.95, np.minimum(grid, 0.6))
    assert nominal_level(step, 0.8, 0.7) == pytest.approx(0.6)
    assert nominal_level(step, 0.64, 0.54) == pytest.approx(0.55)
    assert (nominal_level(step, -0.1, 0), nominal_level(step, 1.0, 0.9)) == (0, 1)


def test_what_one_group_holds_too_much_another_holds_less() -> None:
    """Of two values, an interval holds one or both: 65 % or all cells of a group."""
    rng = np.random.default_rng(7)
    groups = np.arange(COUNT) % 3
    share = np.array([0.72, 0.74, 0.76])[groups]
    true, completed = (rng.random(COUNT) > share).astype(float), np.zeros(COUNT)
    cells = NumberCells(completed, true, groups, HALF, 1.0, np.rint)
    levels = fit_levels(cells, np.zeros(COUNT))
    edges, quantiles, relative = fit_quantiles(completed, completed, true, groups)
    none = np.zeros((0, GROUPS))
    parts = (edges, quantiles, relative)
    column = CellDistributions(*(each[None] for each in parts), none, none[..., None], levels[None])
    low, high = column.interval(0, groups, completed, completed, 0.8)
    inside = (np.rint(low) <= true) & (true <= np.rint(high))
    assert inside.mean() == pytest.approx(0.8, abs=0.05)


def fitted_column(cells: NumberCells) -> CellDistributions:
    """Fit the distributions of a column."""
    near, none = cells.completed, np.zeros((0, GROUPS))
    parts = fit_quantiles(near, cells.rounded(near), cells.true, cells.groups)
    exact = fit_exact(cells, parts[0])
    levels = fit_levels(cells, exact[cells.groups, bins_of(near, parts[0][cells.groups])])
    quantiles = (each[None] for each in parts)
    return CellDistributions(*quantiles, none, none[..., None], levels[None], exact[None])


def test_mostly_equal_numbers_have_a_probability_and_others_an_interval() -> None:
    """In one group 95 % are 0, in the other the numbers are continuous."""
    rng = np.random.default_rng(11)
    groups = np.arange(COUNT) // 2 % 2
    true = np.where(groups == 0, (rng.random(COUNT) > 0.95) * 1.0, rng.random(COUNT))
    completed = np.where(groups == 0, 0.0, 0.5)
    column = fitted_column(NumberCells(completed, true, groups, HALF, 1.0, lambda x: x))
    low, high = column.interval(0, groups, completed, completed, 0.8)
    assert np.array_equal(np.isnan(low), groups == 0)
    inside = (low <= true) & (true <= high)
    assert inside[groups == 1].mean() == pytest.approx(0.8, abs=0.03)
    exact = column.probability_exact(0, groups, completed)
    assert exact[groups == 0] == pytest.approx(0.95, abs=0.02)
    # An interval of a higher level holds no more than it should.
    assert not np.isnan(column.interval(0, groups, completed, completed, 0.95)[0]).any()


def test_numbers_of_two_values_have_a_probability() -> None:
    """An interval would hold 62 % or all of them."""
    rng = np.random.default_rng(12)
    true, groups = (rng.random(COUNT) < 0.38) * 1.0, np.zeros(COUNT, dtype=np.int64)
    column = fitted_column(NumberCells(np.zeros(COUNT), true, groups, HALF, 1.0, np.rint))
    low, high = column.interval(0, groups, np.zeros(COUNT), np.zeros(COUNT), 0.8)
    assert np.isnan(low).all() and np.isnan(high).all()
    exact = column.probability_exact(0, groups, np.zeros(COUNT))
    assert exact == pytest.approx(np.full(COUNT, 0.62), abs=0.03)


def test_quantiles_hold_their_share_of_new_values() -> None:
    """The mean over samples, also of few values; copies of the values change nothing."""
    rng = np.random.default_rng(8)
    samples = rng.random((4000, 25))
    found = np.array([conformal_quantiles(each) for each in samples])
    assert found[:, 2:-2].mean(0) == pytest.approx(LEVELS[2:-2], abs=0.01)
    copied = conformal_quantiles(np.repeat(samples[0], 3), 3.0)
    assert np.abs(copied - found[0]).max() < 0.05
