"""Means, paired differences and verdicts over seeds."""

import math

import pytest
from xvfl_lab.experiments.compare import Difference, difference, mean, values
from xvfl_lab.experiments.runner import Result
from xvfl_lab.experiments.trial import Setting

OURS, RIVAL = ("xvfl+", "local"), ("laser", "local")


def results(**by_method: list[float]) -> list[Result]:
    """Make one result a seed, at rate 0.5."""
    return [
        Result(Setting(name, 0.5, seed), {"local": {"accuracy": value}}, 1.0, 0.1)
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
    ("gap", "error", "verdict"),
    [(0.2, 0.1, "level"), (0.21, 0.1, "ahead"), (-0.21, 0.1, "behind"), (0.0, 0.0, "level")],
)
def test_verdicts_need_two_standard_errors(gap: float, error: float, verdict: str) -> None:
    assert Difference(gap, error).verdict == verdict
