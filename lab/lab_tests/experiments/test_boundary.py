"""Decision regions and how near a party's own decisions are to the joint ones."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from xvfl.config import NetConfig
from xvfl_lab.datasets.digits import digits
from xvfl_lab.experiments import boundary as bd
from xvfl_lab.experiments import plot_boundary
from xvfl_lab.experiments.figure_cache import cached_figure
from xvfl_lab.experiments.figure_plot import draw_once

CPU = torch.device("cpu")
SHORT = replace(bd.TRAIN, epochs=4)


def test_measures_by_hand() -> None:
    own = torch.tensor([[[3.0, 1.0], [0.0, 4.0]]])
    completed = torch.tensor([[[3.0, 2.0], [0.0, 4.0]]])
    both = bd.measure(nn.Identity(), bd.Embedded(own, completed, torch.tensor([1])))
    (found,) = both
    assert found["distance"] == pytest.approx(1.5)
    assert found["relative distance"] == pytest.approx(1.5 / 0.5)
    assert found["agreement"] == 0.5 and found["agreement of completed"] == 1.0
    assert found["distance of completed"] == pytest.approx(0.5)
    assert (found["accuracy own"], found["accuracy joint"]) == (0.5, 1.0)
    near = 1 / (1 + np.exp(-1.0))
    far = [1 / (1 + np.exp(2.0)), 1 / (1 + np.exp(-4.0))]
    assert found["total variation"] == pytest.approx(np.mean([near - far[0], far[1] - near]))


def test_several_seeds_are_measured_apart() -> None:
    E = torch.randn(6, 2, 3, generator=torch.Generator().manual_seed(0))
    y = torch.tensor([0, 1, 2, 2, 1, 0])
    together = bd.measure(nn.Identity(), bd.Embedded(E, E, y, runs=2))
    apart = [
        bd.measure(nn.Identity(), bd.Embedded(E[s], E[s], y[s])) for s in (slice(3), slice(3, 6))
    ]
    assert together == [of_seed for (of_seed,) in apart]


def test_differences_are_paired_with_the_seeds_without() -> None:
    found = bd.summary([{"a": 2.0}, {"a": 5.0}], [{"a": 1.0}, {"a": 3.0}])["a"]
    assert found["mean"] == 3.5 and found["difference"]["mean"] == 1.5
    assert found["difference"]["error"] == pytest.approx(0.5)


def test_a_plane_keeps_what_lies_in_it() -> None:
    rng = torch.Generator().manual_seed(0)
    flat = torch.randn(50, 2, generator=rng) * torch.tensor([3.0, 1.0])
    directions = torch.linalg.qr(torch.randn(5, 2, generator=rng)).Q.T
    points = flat @ directions + 7
    plane = bd.Plane.of(points)
    assert plane.explained == pytest.approx(1)
    torch.testing.assert_close(plane.lift(plane.project(points)), points)
    off = points + torch.randn(50, 5, generator=rng)
    assert 0.5 < bd.Plane.of(off).explained < 0.95


def test_more_weight_draws_own_and_joint_decisions_together() -> None:
    found = {}
    for weight in (0.0, 10.0):
        runs = [bd.run_config(weight, 0, NetConfig(), SHORT)]
        (found[weight],) = bd.measure(*bd.trained(digits(), runs, CPU))
    assert found[10.0]["distance"] < 0.5 * found[0.0]["distance"]
    assert found[10.0]["relative distance"] < found[0.0]["relative distance"]
    assert found[10.0]["distance of completed"] < 0.5 * found[0.0]["distance of completed"]
    assert found[0.0]["accuracy joint"] > 0.5


def test_the_figure_is_made_and_drawn_and_its_regions_are_exact(tmp_path: Path) -> None:
    once = replace(SHORT, epochs=1)
    wide = {w: [bd.run_config(w, s, NetConfig(), once) for s in (0, 1)] for w in bd.WEIGHTS}
    flat = {w: [bd.run_config(w, 0, bd.DRAWN, once)] for w in bd.WEIGHTS}
    made = bd.compute(wide, flat, CPU, lambda _: None)
    cached_figure(tmp_path, bd.NAME, {}, CPU, lambda: made)
    picture = draw_once(tmp_path, bd.NAME, plot_boundary.plot, tmp_path / "boundary.png")
    assert picture.stat().st_size > 10_000
    shown = {
        name: made.arrays[f"0.1/{name}"] for name in ("points", "decided", "regions", "extent")
    }
    left, right, low, high = shown["extent"]
    at = (shown["points"] - [left, low]) / [right - left, high - low] * (bd.GRID - 1)
    column, row = at.round().astype(int).reshape(-1, 2).T
    same = shown["regions"][row, column] == shown["decided"].flatten()
    assert same.mean() > 0.97 and made.arrays["0.1/explained"] == pytest.approx(1)
