"""Comparison of two runs in the federated demo."""

import pytest

from xvfl.cli.demo_federated import accuracy_differences


def lines(local: float, collaborative: float, peers: float) -> list[dict[str, object]]:
    return [
        {"mode": "local", "metrics": {"accuracy": local}},
        {"mode": "collaborative", "metrics": {"accuracy": collaborative}},
        {"mode": "peers", "metrics": {"accuracy": peers}},
    ]


def test_opposite_differences_do_not_hide_the_collaborative_one() -> None:
    differences = accuracy_differences(lines(0.80, 0.97, 0.88), lines(0.81, 0.95, 0.89))
    assert differences["collaborative"] == pytest.approx(0.02)
    assert differences["mean of all modes"] == pytest.approx(0.0)


def test_runs_with_different_modes_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="argument 2 is longer"):
        accuracy_differences(lines(0.8, 0.9, 0.9)[:2], lines(0.8, 0.9, 0.9))
