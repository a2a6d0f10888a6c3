"""The attack on releases with differential privacy, and its figure."""

import json
from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import binom

from lab_tests.experiments.test_stacked_runs import small_task
from xvfl.config import EncoderConfig, PrivacyConfig
from xvfl.federation.privacy_accounting import PrivacyStatement, state_privacy
from xvfl.federation.upload.encoder_net import build_encoder
from xvfl_lab.datasets.digits import digits
from xvfl_lab.experiments import dp
from xvfl_lab.experiments.dp_attack import (
    Neighbors,
    clopper_pearson,
    lower_bound,
    most_distant_rows,
    opposite_rows,
    release_often,
)
from xvfl_lab.experiments.plot_dp import plot
from xvfl_lab.experiments.stacked_runs import StackedRuns

COUNT = 20_000
"""Releases of each of the two rows; half of them measure."""


def stated(epsilon: float) -> PrivacyStatement:
    statement = state_privacy(PrivacyConfig("no_gradients", epsilon=epsilon))
    assert statement is not None
    return statement


@pytest.mark.parametrize("epsilon", [1.0, 4.0, 8.0])
def test_the_attack_finds_less_than_the_stated_epsilon(epsilon: float) -> None:
    found = lower_bound(opposite_rows(), stated(epsilon), COUNT, secret=1)
    assert 0.2 * epsilon < found < epsilon


def test_without_noise_the_attack_finds_far_more() -> None:
    one = stated(1.0)
    assert lower_bound(opposite_rows(), one.without_noise(), COUNT, secret=1) > 7.0


def test_a_tenth_of_the_noise_is_found() -> None:
    weak = PrivacyStatement(1.0, 1e-5, 1, 0.1, stated(1.0).noise_std / 10)
    assert lower_bound(opposite_rows(), weak, COUNT, secret=1) > 3.0


def test_the_hardest_rows_have_the_largest_distance() -> None:
    first, second = release_often(opposite_rows(), stated(1.0).without_noise(), 2, secret=0)
    assert float(np.linalg.norm(first[0] - second[0])) == pytest.approx(2.0, abs=1e-6)


def test_rows_of_a_table_stay_below_the_stated_epsilon() -> None:
    rows = digit_rows()
    assert lower_bound(rows, stated(4.0), 4_000, secret=2) < 4.0
    assert lower_bound(rows, stated(4.0).without_noise(), 4_000, secret=2) > 5.0


def digit_rows() -> Neighbors:
    task = digits()
    encoder = EncoderConfig(epochs=1, epsilon=4.0)
    privacy = PrivacyConfig(epsilon=4.0)
    stack = StackedRuns(task, [dp.run_config(0, 1)], privacy=privacy, encoder=encoder)
    name, table = next(iter(stack.tables.items()))
    net = build_encoder(name, table.layout, encoder, [0])
    return most_distant_rows(net, table.take(torch.arange(200)))


def test_clopper_pearson() -> None:
    """At the lower bound, 5 successes or more are as improbable as 5 or fewer at the upper one."""
    low, high = clopper_pearson(5, 100)
    assert binom.sf(4, 100, low) == pytest.approx(0.05 / 4)
    assert binom.cdf(5, 100, high) == pytest.approx(0.05 / 4)
    assert clopper_pearson(0, 10)[0] == 0.0
    assert clopper_pearson(10, 10)[1] == 1.0


def test_figure_of_a_small_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = replace(small_task(400), name="digits")
    monkeypatch.setattr(dp, "DATASETS", ("digits",))
    monkeypatch.setattr(dp, "EPSILONS", (8.0,))
    monkeypatch.setattr(dp, "PARTY_ROWS", 200)
    lines: list[str] = []
    cpu = torch.device("cpu")
    record = dp.make(tmp_path, True, cpu, lambda name, k: task, lines.append)
    assert list(record["figures"]["scores"]["digits"]) == [
        "off",
        "no gradients",
        dp.name_of(inf),
        "ε = 8",
    ]
    assert "| digits | collaborative | " in (tmp_path / "dp.md").read_text()
    assert json.loads((tmp_path / "dp.json").read_text())["figures"] == record["figures"]
    seen = len(lines)
    dp.make(tmp_path, True, cpu, lambda name, k: task, lines.append)
    assert len(lines) == seen
    monkeypatch.setattr("xvfl_lab.experiments.plot_dp.EPSILONS", (8.0,))
    assert plot(record["figures"], {}).axes
