"""Rounds of PAGE and SGD: equal work, full gradients, exponents."""

from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from xvfl.training.page import PagePlan
from xvfl_lab.datasets.digits import digits
from xvfl_lab.experiments import plot_rounds
from xvfl_lab.experiments import rounds as rd
from xvfl_lab.experiments.convergence import SMOOTH
from xvfl_lab.experiments.figure_cache import FigureData, cached_figure
from xvfl_lab.experiments.figure_plot import draw_once
from xvfl_lab.experiments.known_problem import run_sgd
from xvfl_lab.experiments.stacked_runs import StackedRuns

CPU = torch.device("cpu")


def test_page_that_is_always_fresh_is_sgd() -> None:
    sgd = rd.run_config("sgd", 0.01, 0, 64)
    page = rd.run_config("page", 0.01, 0, 64)
    sgd = replace(sgd, train=replace(sgd.train, batch_size=64))
    fresh = replace(page, train=replace(page.train, page_probability=1.0))
    curves = [rd.curve(digits(), each, 12, 4, CPU) for each in (sgd, fresh, page)]
    assert curves[0].shape == (2, 4)
    np.testing.assert_allclose(curves[0], curves[1], rtol=1e-6)
    assert curves[0][0, -1] < curves[0][0, 0]
    np.testing.assert_allclose(curves[0][:, 0], curves[2][:, 0], rtol=1e-6)
    assert abs(curves[0] - curves[2])[:, 1:].min() > 1e-4


def test_the_work_of_a_round_is_equal() -> None:
    sgd, page = (rd.run_config(name, 0.1, 0, 512) for name in rd.ALGORITHMS)
    plan = PagePlan.default(page.train.batch_size)
    assert 0 <= sgd.train.batch_size - plan.gradients_per_step < 1
    assert sgd.train.momentum == page.train.momentum == sgd.train.weight_decay == 0


def test_the_full_gradient_is_that_of_all_rows_and_leaves_no_trace() -> None:
    stack = StackedRuns(digits(), [rd.run_config("sgd", 0.1, 0, 64)])
    loss, square = rd.full_gradient(stack)
    nets = [*(worker.net for worker in stack.federation.workers), stack.method.heads]
    weights = [weight for net in nets for weight in net.parameters()]
    assert all(weight.grad is None for weight in weights)
    total = torch.stack(list(stack.method.loss(stack.federation, stack.rows("train")).values()))
    total.sum().backward()
    assert loss == pytest.approx(float(total.detach().sum()))
    assert square == pytest.approx(sum(float(w.grad.square().sum()) for w in weights), rel=1e-5)


def test_exponents_are_fitted_to_the_late_rounds() -> None:
    at = rd.spread(1000)
    assert at[0] == 1 and at[-1] == 1000 and (np.diff(at) > 0).all()
    assert rd.exponent(at, 5.0 * at**-0.5) == pytest.approx(-0.5)
    assert rd.exponent(at, np.where(at < 100, 1e6, 3.0 / at)) == pytest.approx(-1)


def test_each_T_has_its_best_step_size() -> None:
    steps = [0.01, 0.3]
    best = rd.best_average(run_sgd(SMOOTH, steps, 50, 8, 0), 40)
    each = list(islice(run_sgd(SMOOTH, steps, 50, 8, 0), 40))
    np.testing.assert_allclose(best, [float(average.mean.min()) for average in each])


def test_summaries_choose_the_least_loss_and_outlive_divergence() -> None:
    at = np.array([0, 10, 20])
    dead = np.array([[[2.0, 3.0, 3.0], [4.0, 0.0, 0.0]]] * 2)
    fast = np.array([[[2.0, 1.0, 0.6], [4.0, 1.0, 1.0]], [[2.0, 1.0, 0.4], [4.0, 1.0, 1.0]]])
    lost = np.full_like(dead, np.nan)
    found = rd.summary({0.1: lost, 0.5: fast, 9.0: dead}, at)
    assert found["step size"] == 0.5 and found["average ‖∇L‖²"] == pytest.approx(2.0)
    assert found["last loss"] == pytest.approx(0.5)
    assert found["grid"]["9"]["average ‖∇L‖²"] == pytest.approx(4 / 3)
    assert found["grid"]["0.1"]["last loss"] is None


def test_the_figure_is_made_and_drawn(tmp_path: Path) -> None:
    todo = {(a, s): [rd.run_config(a, s, 0, 256)] for a in rd.ALGORITHMS for s in (0.001, 0.01)}
    figures, arrays = rd.known(40)
    real, curves = rd.on_digits(tmp_path, todo, 8, 2, CPU, lambda _: None)
    assert real["work"]["page"] == PagePlan.default(256).gradients_per_step
    assert curves["digits/page"].shape == (1, 2, 5)
    made = FigureData({"known problem": figures, "digits": real}, {**arrays, **curves})
    cached_figure(tmp_path, rd.NAME, {}, CPU, lambda: made)
    picture = draw_once(tmp_path, rd.NAME, plot_rounds.plot, tmp_path / "rounds.png")
    assert picture.stat().st_size > 10_000
