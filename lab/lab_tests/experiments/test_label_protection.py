"""Label attacks: they find what is there, and nothing where nothing was received."""

import numpy as np
import pytest
import torch

from xvfl.config import EncoderConfig, PrivacyConfig
from xvfl_lab.datasets.digits import digits
from xvfl_lab.experiments.label_protection import (
    ATTACKS,
    GradientProbe,
    attack_labels,
    run_config,
    summary,
)
from xvfl_lab.experiments.stacked_runs import StackedRuns


def test_attacks_find_labels_in_gradients_that_hold_them() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 400)
    noise = 0.01 * rng.normal(size=(400, 5))
    by_norm = noise + np.where(y == 1, 3.0, 1.0)[:, None] * np.eye(5)[0]
    by_sign = noise + np.where(y == 1, 1.0, -1.0)[:, None] * np.eye(5)[0]
    assert attack_labels(by_norm.astype(np.float32), y)["norm"] > 0.99
    found = attack_labels(by_sign.astype(np.float32), y)
    assert found["direction"] > 0.99 and found["spectral"] > 0.99
    nothing = attack_labels(rng.normal(size=(400, 5)).astype(np.float32), y)
    assert max(nothing.values()) < 0.65


@pytest.mark.parametrize(
    ("privacy", "low", "high"),
    [
        (PrivacyConfig("off"), 0.9, 1.0),
        (PrivacyConfig("noise", 4.0), 0.5, 0.65),
        (PrivacyConfig("no_gradients"), 0.5, 0.5),
    ],
)
def test_protection_hides_the_labels_from_the_gradients(
    privacy: PrivacyConfig, low: float, high: float
) -> None:
    encoder = EncoderConfig(epochs=1)
    run = run_config(0.5, 0, epochs=2)
    stack = StackedRuns(digits(), [run], privacy=privacy, encoder=encoder)
    probe = GradientProbe(stack)
    with torch.random.fork_rng(devices=[]):
        stack.train(on_epoch=probe.end_epoch)
    leakage = probe.leakage(0)
    for period in ("first epoch", "all epochs"):
        assert low <= leakage[period]["direction"] <= high


def test_the_summary_compares_with_no_protection() -> None:
    leakage = {"all epochs": dict.fromkeys(ATTACKS, 0.7)}
    runs = [{"local": 60.0, "assisted": 70.0, "collaborative": 80.0, "leakage": leakage}]
    lower = [{**runs[0], "local": 58.0}]
    table = summary({"set": {"off": {"runs": runs}, "other": {"runs": lower}}})
    assert table["set other"]["cost"]["local"] == 2.0
    assert table["set other"]["leakage"]["norm"] == pytest.approx(0.7)
