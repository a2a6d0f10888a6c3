"""Compare the losses of fast training with those of plain training.

Fast: captured steps, also resumed halfway; several runs at once; images in bf16; rows read from
disk while a GPU computes.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from xvfl.config import NetConfig, TrainConfig
from xvfl.training.loop import Trainer
from xvfl_lab.bench.disk import on_disk
from xvfl_lab.bench.gpu import configs, random_images, random_table
from xvfl_lab.bench.outcome import Claim, Line, Outcome
from xvfl_lab.bench.sections import Plan
from xvfl_lab.bench.shapes import config
from xvfl_lab.experiments.stacked_runs import RunConfig, StackedRuns
from xvfl_lab.methods import METHODS
from xvfl_lab.task import Task

STEPS, BATCH, RUNS = 8, 50, 3
FLOAT32, REORDERED, BF16 = 1e-4, 1e-3, 0.02
"""Tolerated relative difference of the losses.

Several runs at once sum in another order: a unit that rounding switches on or off changes by a
whole step of Adam.
"""


def agreement(plan: Plan) -> Outcome:
    """Compare the loss over some steps of plain and fast training."""
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    streamed = {"GPU": _apart(losses_from_disk("xvfl+", gpu), losses_from_disk("xvfl+", cpu))}
    outcome = _tables("xvfl+", gpu) + _outcome("xvfl+ from disk: CPU", streamed, FLOAT32)
    if plan.quick:
        return outcome
    others = (_tables(method, gpu) for method in METHODS if method != "xvfl+")
    return sum(others, outcome) + _images("xvfl+", gpu)


def _tables(method: str, device: torch.device) -> Outcome:
    task = random_table(rows_for(BATCH))
    runs = configs(method, NetConfig(64, 64), _train())[:RUNS]
    plain = [losses(task, [run], device, captured=False) for run in runs]
    captured = losses(task, runs[:1], device, captured=True)
    resumed = losses(task, runs[:1], device, captured=True, cut=STEPS // 2)
    at_once = losses(task, runs, device, captured=True)
    same = {"captured": _apart(captured, plain[0]), "captured, resumed": _apart(resumed, plain[0])}
    reordered = {f"{RUNS} runs at once": _apart(at_once, sum(plain) / RUNS)}
    return _outcome(method, same, FLOAT32) + _outcome(method, reordered, REORDERED)


def _images(method: str, device: torch.device) -> Outcome:
    task = random_images(rows_for(BATCH))
    run = configs(method, NetConfig(), _train())[0]
    plain = losses(task, [run], device, captured=False)
    quick = replace(run, train=replace(run.train, precision="bf16"))
    apart = {"captured bf16": _apart(losses(task, [quick], device, captured=True), plain)}
    return _outcome(f"images, {method}", apart, BF16)


def losses(
    task: Task, runs: Sequence[RunConfig], device: torch.device, captured: bool, cut: int = 0
) -> float:
    """Train the runs; return their mean loss over the steps of the last epoch.

    After `cut` steps a new trainer resumes from the state.
    """
    trainer = StackedRuns(task, runs, device).trainer(captured)
    if cut:
        for _ in zip(range(cut), trainer.run(lambda: 0.0), strict=False):
            pass
        state = trainer.state()
        trainer = StackedRuns(task, runs, device).trainer(captured)
        trainer.restore(*state)
    return _loss(trainer)


def losses_from_disk(method: str, device: torch.device) -> float:
    """Return the same loss with rows in files."""
    run = configs(method, NetConfig(64, 64), _train())[0]
    stack = StackedRuns(random_table(rows_for(BATCH)), [run], device)
    with on_disk(stack, device) as rows:
        return _loss(Trainer(stack.federation, stack.method, rows, stack.options.train))


def _loss(trainer: Trainer) -> float:
    *_, epoch = trainer.run(lambda: 0.0)
    return sum(value for name, value in epoch.values.items() if name != "score")


def rows_for(batch: int) -> int:
    """Return how many rows a task needs for the steps of an epoch; a fifth are test rows."""
    return STEPS * batch * 5 // 4


def _apart(a: float, b: float) -> float:
    return abs(a - b) / abs(b)


def _outcome(case: str, apart: dict[str, float], within: float) -> Outcome:
    claims = [
        Claim(f"{case}: loss, plain and {name}, apart", value, within, False)
        for name, value in apart.items()
    ]
    lines = [Line("agreement", case, name, value, "apart") for name, value in apart.items()]
    return Outcome(tuple(lines), tuple(claims))


def _train() -> TrainConfig:
    """Train two epochs with validation in between and a changing learning rate."""
    return config(BATCH, epochs=2, schedule="cosine")
