"""Means, paired differences and verdicts over seeds."""

import math

import pytest
from scipy.stats import t as student

from xvfl_lab.experiments.compare import (
    Difference,
    critical_value,
    difference,
    holm,
    mean,
    p_value,
    values,
)
from xvfl_lab.experiments.runner import Result
from xvfl_lab.experiments.stacked_runs import RunConfig

OURS, RIVAL = ("xvfl+", "local"), ("laser", "local")


def results(**by_method: list[float]) -> list[Result]:
    """Make one result a seed, at rate 0.5."""
    return [
        Result(RunConfig(name, 0.5, seed), {"local": {"accuracy": value}}, 1.0, 0.1)
        for name, figures in by_method.items()
        for seed, value in enumerate(figures)
    ]


def test_values_are_chosen_by_method_rate_and_way() -> None:
    found = results(**{"xvfl+": [0.9, 0.8], "laser": [0.7]})
    assert values(found, OURS, 0.5, "accuracy") == {0: 0.9, 1: 0.8}
    assert values(found, OURS, 0.3, "accuracy") == {}
    assert values(found, ("xvfl+", "assisted"), 0.5, "accuracy") == {}


def test_means_and_deviations_by_hand() -> None:
    found = results(**{"xvfl+": [0.7, 0.8, 0.9], "laser": [0.6]})
    assert mean(found, OURS, 0.5).mean == pytest.approx(0.8)
    assert mean(found, OURS, 0.5).deviation == pytest.approx(0.1)
    assert mean(found, RIVAL, 0.5).deviation == 0


def test_differences_are_paired_by_seed() -> None:
    found = results(**{"xvfl+": [0.9, 0.5, 0.7], "laser": [0.8, 0.4, 0.6, 0.1]})
    gap = difference(found, OURS, RIVAL, 0.5)
    assert gap.mean == pytest.approx(0.1) and gap.error == pytest.approx(0, abs=1e-12)
    assert gap.verdict == "ahead"
    assert difference(found, RIVAL, OURS, 0.5).verdict == "behind"
    noisy = results(**{"xvfl+": [0.9, 0.5], "laser": [0.7, 0.6]})
    gap = difference(noisy, OURS, RIVAL, 0.5)
    assert (gap.mean, gap.error) == (pytest.approx(0.05), pytest.approx(0.15))
    assert gap.verdict == "level"


def test_one_seed_decides_nothing() -> None:
    gap = difference(results(**{"xvfl+": [0.9], "laser": [0.1]}), OURS, RIVAL, 0.5)
    assert math.isnan(gap.error) and gap.verdict == "level"


@pytest.mark.parametrize(
    ("gap", "seeds", "verdict"),
    [(0.43, 3, "level"), (0.44, 3, "ahead"), (-0.23, 10, "behind"), (0.22, 10, "level")],
)
def test_verdicts_are_those_of_students_t(gap: float, seeds: int, verdict: str) -> None:
    assert Difference(gap, 0.1, seeds).verdict == verdict


def test_equal_seeds_decide_without_an_error() -> None:
    assert Difference(0.1, 0.0, 2).verdict == "ahead" and Difference(0.0, 0.0, 2).verdict == "level"


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 9, 10, 500])
def test_p_values_are_those_of_scipy(freedom: int) -> None:
    for value in (0.0, 0.3, 1.0, -2.5, 7.0):
        expected = 2 * student.sf(abs(value), freedom)
        assert p_value(value, freedom) == pytest.approx(expected, abs=1e-12)
    assert critical_value(freedom) == pytest.approx(student.ppf(0.975, freedom))


def test_holm_raises_the_bar_with_the_number_of_rivals() -> None:
    clear, near, none = (Difference(mean, 0.1, 10) for mean in (1.0, 0.24, 0.1))
    assert holm({"a": near}) == {"a": "ahead"}
    assert holm({"a": near, "b": none}) == {"a": "level", "b": "level"}
    assert holm({"a": near, "b": clear}) == {"a": "ahead", "b": "ahead"}
    behind = Difference(-1.0, 0.1, 10)
    verdicts = {"a": "behind", "b": "ahead", "c": "level"}
    assert holm({"a": behind, "b": clear, "c": none}) == verdicts
