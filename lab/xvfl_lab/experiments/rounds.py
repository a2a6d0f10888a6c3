"""PAGE against SGD in rounds of communication (P10), on a test problem and on real data.

Problem with known constants (`known_problem`): the theorems' average (1/T) Σ_{t<T} E‖∇L(θ^t)‖² at
the best step size for each T, with the exponents of its decrease. Real data: X-VFL's loss on
scanned digits, SGD without momentum and PAGE with equal gradient evaluations a round, the same grid
of step sizes; the full gradient is measured every few rounds, outside training. The digits come
with scikit-learn; otherwise torch and numpy alone.
"""

import math
from collections.abc import Iterable
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from xvfl.config import LossConfig, TrainConfig
from xvfl.training.page import PagePlan
from xvfl_lab.datasets.digits import digits
from xvfl_lab.experiments.convergence import REPETITIONS, SMOOTH, STEP_SIZES
from xvfl_lab.experiments.dispatch import Load
from xvfl_lab.experiments.figure_cache import FigureData, Progress, cached_figure, cached_part
from xvfl_lab.experiments.figures import ONE_MEMBER
from xvfl_lab.experiments.known_problem import Estimate, run_page, run_sgd
from xvfl_lab.experiments.stacked_runs import RunConfig, StackedRuns, isolated
from xvfl_lab.task import Task

NAME = "rounds"
Algorithm = Literal["sgd", "page"]
ALGORITHMS: tuple[Algorithm, ...] = ("sgd", "page")
KNOWN_BATCH = 1_000_000
"""b of PAGE on the test problem; the floor of its bound, σ²/b = 0.0004, is below the plot."""
DIGITS_BATCH = 512
GRID = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
"""Step sizes on the digits."""
FITTED_FROM = 0.1
"""Exponents are fitted over T from this fraction of the rounds on."""


def make(
    out: Path, quick: bool, device: torch.device, load: Load, progress: Progress
) -> dict[str, Any]:
    """Run both algorithms on both problems."""
    known_rounds = 1000 if quick else 10_000
    seeds, rounds, every = ((0,), 100, 5) if quick else ((0, 1, 2), 400, 10)
    todo = {
        (algorithm, step): [run_config(algorithm, step, seed, DIGITS_BATCH) for seed in seeds]
        for algorithm in ALGORITHMS
        for step in GRID
    }
    config = {
        "known": [asdict(SMOOTH), STEP_SIZES, KNOWN_BATCH, known_rounds, REPETITIONS],
        "digits": [asdict(each) for group in todo.values() for each in group],
        "rounds": [rounds, every, FITTED_FROM],
    }

    def compute() -> FigureData:
        progress(f"known problem, {known_rounds} rounds")
        figures, arrays = known(known_rounds)
        real, curves = on_digits(out, todo, rounds, every, device, progress)
        return FigureData({"known problem": figures, "digits": real}, {**arrays, **curves})

    return cached_figure(out, NAME, config, device, compute)


def known(rounds: int) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Average ‖∇L‖² on the test problem, each T at its best step size."""
    plan = PagePlan.default(KNOWN_BATCH)
    work = math.ceil(plan.gradients_per_step)
    runs = {
        "sgd": run_sgd(SMOOTH, STEP_SIZES, work, REPETITIONS, 0),
        "page": run_page(SMOOTH, STEP_SIZES, plan, REPETITIONS, 0),
    }
    curves = {name: best_average(run, rounds) for name, run in runs.items()}
    at = spread(rounds)
    figures = {
        "b": {"sgd": work, "page": plan.b, "page small": plan.b_small},
        "gradients per round": {"sgd": work, "page": plan.gradients_per_step},
        "exponent": {name: exponent(at, curve[at - 1]) for name, curve in curves.items()},
        "last": {name: float(curve[-1]) for name, curve in curves.items()},
        "floor of PAGE's bound": SMOOTH.variance / plan.b,
    }
    return figures, {
        "known/rounds": at,
        **{f"known/{name}": curve[at - 1] for name, curve in curves.items()},
    }


def best_average(averages: Iterable[Estimate], rounds: int) -> NDArray[np.float64]:
    """Return the smallest mean over step sizes at every T = 1 .. rounds."""
    return np.array([float(average.mean.min()) for average in islice(averages, rounds)])


def spread(rounds: int) -> NDArray[np.int64]:
    """Return rounds that are evenly spaced on a logarithmic scale."""
    return np.unique(np.geomspace(1, rounds, 120).round().astype(np.int64))


def exponent(rounds: NDArray[Any], values: NDArray[np.float64]) -> float:
    """Fit q of values ∝ T^q by least squares on the logarithms, over the last rounds."""
    late = rounds >= FITTED_FROM * rounds[-1]
    return float(np.polyfit(np.log(rounds[late]), np.log(values[late]), 1)[0])


def run_config(algorithm: Algorithm, step: float, seed: int, b: int) -> RunConfig:
    """Configure a run; SGD's batch size is PAGE's expected gradients per step."""
    batch = b if algorithm == "page" else math.ceil(PagePlan.default(b).gradients_per_step)
    plain = TrainConfig(
        schedule="constant", momentum=0.0, weight_decay=0.0, patience=0, image_shift=0.0
    )
    train = replace(
        plain, optimizer=algorithm, batch_size=batch, learning_rate=step, random_state=seed
    )
    loss = LossConfig(method="xvfl", joint_masks=False)
    run = RunConfig("xvfl", 0.5, seed, net=ONE_MEMBER, loss=loss, train=train, weights="last")
    options = run.resolve(image=False, parties=2)
    return replace(run, loss=options.loss, train=options.train)


Key = tuple[Algorithm, float]


def on_digits(
    out: Path,
    todo: dict[Key, list[RunConfig]],
    rounds: int,
    every: int,
    device: torch.device,
    progress: Progress,
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Run the whole grid, choose each algorithm's step size, and return the chosen curves."""
    task = digits()
    measured: dict[Key, NDArray[np.float64]] = {}
    for (algorithm, step), configs in todo.items():
        progress(f"{algorithm} on digits, step size {step:g}, {rounds} rounds")
        curves = [cached_curve(out, task, each, rounds, every, device) for each in configs]
        measured[algorithm, step] = np.stack(curves)
    at = np.arange(0, rounds + 1, every)
    figures: dict[str, Any] = {}
    arrays: dict[str, NDArray[Any]] = {"digits/rounds": at}
    for algorithm in ALGORITHMS:
        grid = {step: each for (name, step), each in measured.items() if name == algorithm}
        figures[algorithm] = summary(grid, at)
        chosen = figures[algorithm]["step size"]
        arrays[f"digits/{algorithm}"] = grid[chosen]
    batch = {name: group[0].train.batch_size for (name, _), group in todo.items()}
    per_round = PagePlan.default(batch["page"]).gradients_per_step
    figures["work"] = {"sgd": batch["sgd"], "page": per_round}
    return figures, arrays


def cached_curve(
    out: Path, task: Task, config: RunConfig, rounds: int, every: int, device: torch.device
) -> NDArray[np.float64]:
    """Return a run's `curve`, from disk if it was computed before."""

    def compute() -> FigureData:
        with isolated(task, device):
            return FigureData({}, {"curve": curve(task, config, rounds, every, device)})

    about = {"figure": NAME, "run": asdict(config), "rounds": [rounds, every]}
    return cached_part(out, about, device, compute).arrays["curve"]


def curve(
    task: Task, config: RunConfig, rounds: int, every: int, device: torch.device
) -> NDArray[np.float64]:
    """Train; measure training loss and ‖∇L‖² at the start and every few rounds. (2, M)"""
    # An epoch has at least one round, so these epochs suffice.
    stack = StackedRuns(task, [replace(config, train=replace(config.train, epochs=rounds))], device)
    measured = [full_gradient(stack)]
    steps = (each for each in stack.trainer().run(lambda: 0.0) if each.kind == "step")
    for record in islice(steps, rounds):
        if record.progress.step % every == 0:
            measured.append(full_gradient(stack))
    return np.array(measured).T


def full_gradient(stack: StackedRuns) -> tuple[float, float]:
    """Measure the loss over all training rows and the squared norm of its gradient.

    The gradients of training are not changed.
    """
    weights = [weight for net in stack.nets for weight in net.parameters()]
    terms = stack.method.loss(stack.federation, stack.rows("train"))
    loss = torch.stack(list(terms.values())).sum()
    slopes = torch.autograd.grad(loss, weights, allow_unused=True)
    square = sum(float(slope.square().sum()) for slope in slopes if slope is not None)
    return float(loss.detach()), square


def summary(grid: dict[float, NDArray[np.float64]], at: NDArray[np.int64]) -> dict[str, Any]:
    """Choose the step size of the smallest final loss; summarize all of them.

    Not that of the smallest ‖∇L‖²: a step size that ruins the nets leaves almost no gradient.
    """
    last = {step: float(each[:, 0, -1].mean()) for step, each in grid.items()}
    best = min(last, key=lambda step: last[step] if math.isfinite(last[step]) else math.inf)
    average = running(grid[best][:, 1].mean(0))
    return {
        "step size": best,
        "exponent": exponent(at[1:], average[1:]),
        **ends(grid[best]),
        "grid": {f"{step:g}": ends(each) for step, each in grid.items()},
    }


def ends(seeds: NDArray[np.float64]) -> dict[str, float | None]:
    """Return the final values of a step size, averaged over seeds; None if it diverged."""
    loss, square = seeds.mean(0)
    final = {"last loss": loss[-1], "last ‖∇L‖²": square[-1], "average ‖∇L‖²": square.mean()}
    return {name: float(each) if np.isfinite(each) else None for name, each in final.items()}


def running(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the running mean."""
    mean: NDArray[np.float64] = np.cumsum(values) / np.arange(1, len(values) + 1)
    return mean
