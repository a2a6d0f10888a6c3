"""How the federated demo compares two runs."""

import pytest

from xvfl.cli.demo_federated import gaps_between


def lines(local: float, collaborative: float, peers: float) -> list[dict[str, object]]:
    return [
        {"mode": "local", "metrics": {"accuracy": local}},
        {"mode": "collaborative", "metrics": {"accuracy": collaborative}},
        {"mode": "peers", "metrics": {"accuracy": peers}},
    ]


def test_opposite_gaps_do_not_hide_the_collaborative_one() -> None:
    gaps = gaps_between(lines(0.80, 0.97, 0.88), lines(0.81, 0.95, 0.89))
    assert gaps["collaborative"] == pytest.approx(0.02)
    assert gaps["mean of all lines"] == pytest.approx(0.0)


def test_a_run_with_other_ways_to_predict_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="argument 2 is longer"):
        gaps_between(lines(0.8, 0.9, 0.9)[:2], lines(0.8, 0.9, 0.9))
