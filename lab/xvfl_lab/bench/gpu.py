"""Benchmarks on a GPU: eager steps, captured steps, and several runs at once."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from xvfl.config import LossConfig, NetConfig, TrainConfig
from xvfl.primitives.layout import Layout
from xvfl.training.cuda_graph import WARM_UP
from xvfl_lab.bench.outcome import Claim, Outcome
from xvfl_lab.bench.sections import Plan
from xvfl_lab.bench.shapes import config, numbers, steps
from xvfl_lab.bench.timing import take_turns
from xvfl_lab.experiments.figures import SMALL
from xvfl_lab.experiments.stacked_runs import RunConfig, StackedRuns
from xvfl_lab.task import Task

SEEDS, RATES = range(5), (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
CAPTURED, AT_ONCE, IMAGES = 5.0, 20.0, 3.0
CUDA = torch.device("cuda")


def table(plan: Plan) -> Outcome:
    """Time the paper's shape for tables: eager, captured, and all runs of a figure at once."""
    task, outcome = random_table(4_000), Outcome()
    for method in ("xvfl", "xvfl+"):
        runs = configs(method, NetConfig(plan.d, plan.d), config(50))
        all_runs = f"{len(runs)} runs"
        contenders = {
            "eager": training(task, runs[:1], CUDA, captured=False),
            "captured": training(task, runs[:1], CUDA, captured=True),
            all_runs: training(task, runs, CUDA, captured=True),
        }
        times = take_turns(contenders, plan.rounds, plan.gpu_steps, WARM_UP + 3)
        at_once = len(runs) / times.ratio(all_runs, "eager")
        claims = (
            Claim(f"{method}: eager / captured", times.ratio("eager", "captured"), CAPTURED, True),
            Claim(f"{method}: {all_runs}, eager / at once", at_once, AT_ONCE, True),
        )
        outcome += Outcome(times.lines("gpu", method, "eager"), claims)
    return outcome


def images(plan: Plan) -> Outcome:
    """Time the strips of CIFAR-10, batch 200: eager and captured float32, captured bf16."""
    task, outcome = random_images(2_000), Outcome()
    for method in ("xvfl", "xvfl+"):
        plain = configs(method, SMALL if plan.quick else NetConfig(), config(200))[:1]
        quick = [replace(each, train=replace(each.train, precision="bf16")) for each in plain]
        contenders = {
            "eager float32": training(task, plain, CUDA, captured=False),
            "captured float32": training(task, plain, CUDA, captured=True),
            "captured bf16": training(task, quick, CUDA, captured=True),
        }
        times = take_turns(contenders, plan.rounds, plan.gpu_steps // 2, WARM_UP + 3)
        faster = times.ratio("eager float32", "captured bf16")
        claim = Claim(f"images, {method}: eager float32 / best", faster, IMAGES, True)
        outcome += Outcome(times.lines("images", method, "eager float32"), (claim,))
    return outcome


def configs(method: str, net: NetConfig, train: TrainConfig) -> list[RunConfig]:
    """List the runs of a figure: five seeds, seven rates, R_miss 0.5 first."""
    loss = LossConfig(method=method)
    order = sorted(RATES, key=lambda rate: abs(rate - 0.5))
    return [
        RunConfig(method, rate, seed, net=net, loss=loss, train=train, weights="last")
        for seed in SEEDS
        for rate in order
    ]


def training(
    task: Task, runs: Sequence[RunConfig], device: torch.device, captured: bool
) -> Iterator[None]:
    """Train the runs at once, one step for each `next`."""
    return steps(StackedRuns(task, runs, device).trainer(captured))


def random_table(rows: int) -> Task:
    """Sample a table of two parties, 30 features each."""
    rng, layouts = np.random.default_rng(0), dict.fromkeys(("a", "b"), Layout(numbers(30)))
    values = {name: rng.random((rows, 30), dtype=np.float32) for name in layouts}
    return Task("random", layouts, values, rng.integers(0, 2, rows))


def random_images(rows: int) -> Task:
    """Sample images of two parties, halves of CIFAR-10's size."""
    shape = (3, 32, 16)
    rng, layouts = np.random.default_rng(0), dict.fromkeys(("a", "b"), Layout(image=shape))
    values = {name: rng.integers(0, 256, (rows, *shape)).astype(np.uint8) for name in layouts}
    return Task("random", layouts, values, rng.integers(0, 10, rows))
