"""Train and test methods in scenarios, several runs at once where they fit. Torch and numpy alone.

The same protocol for every method: masks sampled by the scenario's seed, a fixed number of epochs,
test rows all non-aligned. The same rows whole, and a mix with training's overlap, are measured
separately.
"""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from xvfl.federation.predict import logits
from xvfl.methods.base import Method, Mode
from xvfl.methods.xvfl import XVFL
from xvfl.primitives.layout import any_image
from xvfl.primitives.metrics import all_metrics, majority_rate
from xvfl.primitives.random import named_generator
from xvfl.training.threads import limit_threads
from xvfl_lab.experiments.stacked_runs import Part, RunConfig, StackedRuns
from xvfl_lab.task import Task

ZERO_FILL = " zero-filled"
MIXED = " mixed"
WHOLE = " whole"


@dataclass(frozen=True)
class Result:
    """Metrics of every way to predict, over (row, party) pairs where the party is incomplete.

    `local/NAME` is one party's part of `local`; `local mixed` and `local whole` are over all pairs
    of the mixed and of the whole test rows.
    """

    config: RunConfig
    metrics: dict[str, dict[str, float]]
    seconds: float
    """Of the run, or its share of the time of runs computed together."""
    majority: float
    """Accuracy of always predicting the most frequent class of the test rows."""


def run(task: Task, config: RunConfig) -> Result:
    """Train and test one method in one scenario."""
    return run_many(task, [config])[0]


def run_many(
    task: Task, configs: Sequence[RunConfig], device: torch.device | None = None
) -> list[Result]:
    """Train and test runs of one shape at once."""
    started = time.perf_counter()
    device = device or torch.device("cpu")
    with torch.random.fork_rng(devices=[]), limit_threads(any_image(task.layouts), device):
        stack = StackedRuns(task, configs, device)
        stack.train()
        metrics = test(stack)
    seconds = (time.perf_counter() - started) / len(configs)
    majority = majority_rate(stack.rows("test").y.cpu().numpy())
    return [
        Result(config, of_run, seconds, majority)
        for config, of_run in zip(configs, metrics, strict=True)
    ]


def test(stack: StackedRuns) -> list[dict[str, dict[str, float]]]:
    """Measure every mode on the test rows; X-VFL also without completion."""
    ways = predictions(stack, stack.method, "")
    if isinstance(stack.method, XVFL):
        plain = XVFL(stack.method.heads, stack.method.weights, completing=False)
        ways |= predictions(stack, plain, ZERO_FILL)
    jobs = [(run, name, *pair) for name, pairs in ways.items() for run, pair in enumerate(pairs)]
    by_run: list[dict[str, dict[str, float]]] = [{} for _ in stack.seeds]
    with ThreadPoolExecutor() as pool:
        for (run, name, _, _), metrics in zip(jobs, pool.map(_metrics, jobs), strict=True):
            by_run[run][name] = metrics
    return by_run


Pairs = list[tuple[Tensor, Tensor]]
"""Logits and labels of every run."""


def predictions(stack: StackedRuns, method: Method, suffix: str) -> dict[str, Pairs]:
    """Predict the test rows in every mode."""
    ways: dict[str, Pairs] = {}
    parties = range(len(stack.task.layouts))
    for mode in sorted(method.modes):
        if mode == "collaborative":
            test = predict(stack, method, "test", mode, 0)
            whole = predict(stack, method, "whole", mode, 0)
            aligned = [mixed_rows(stack, run) for run in range(len(stack.seeds))]
            ways[mode + suffix] = test
            ways[mode + suffix + WHOLE] = whole
            ways[mode + suffix + MIXED] = [
                (torch.where(a.unsqueeze(1), w, t), y)
                for a, (t, y), (w, _) in zip(aligned, test, whole, strict=True)
            ]
        else:
            by_party = [predict(stack, method, "test", mode, i) for i in parties]
            ways |= incomplete_pairs(stack, by_party, mode + suffix)
            if mode == "local":
                complete = [predict(stack, method, "whole", mode, i) for i in parties]
                ways |= all_pairs(stack, by_party, complete, mode + suffix)
    return ways


def predict(stack: StackedRuns, method: Method, part: Part, mode: Mode, party: int) -> Pairs:
    """Predict a part's rows in a mode, run by run."""
    rows = stack.rows(part)
    out = logits(method, stack.federation, rows, mode, party)
    return list(zip(out.chunk(rows.runs), rows.y.cpu().chunk(rows.runs), strict=True))


def incomplete_pairs(stack: StackedRuns, by_party: Sequence[Pairs], name: str) -> dict[str, Pairs]:
    """Select the pairs where the party is incomplete: of all parties, and of each."""
    incomplete = stack.incomplete("test")
    ways = {
        f"{name}/{party}": [
            (out[mine], y[mine]) for (out, y), mine in zip(pairs, incomplete[:, :, i], strict=True)
        ]
        for i, (party, pairs) in enumerate(zip(stack.task.layouts, by_party, strict=True))
    }
    joined = [_join(of_run) for of_run in zip(*ways.values(), strict=True)]
    return {name: joined, **ways}


def all_pairs(
    stack: StackedRuns, test: Sequence[Pairs], whole: Sequence[Pairs], name: str
) -> dict[str, Pairs]:
    """Select all pairs of the whole rows, and of the mixed rows."""
    incomplete = stack.incomplete("test")
    mixed = []
    for run in range(len(stack.seeds)):
        aligned = mixed_rows(stack, run)
        parts = []
        for i, (with_gaps, without) in enumerate(zip(test, whole, strict=True)):
            gaps = (incomplete[run, :, i] & ~aligned).unsqueeze(1)
            parts.append((torch.where(gaps, with_gaps[run][0], without[run][0]), without[run][1]))
        mixed.append(_join(parts))
    joined = [_join(of_run) for of_run in zip(*whole, strict=True)]
    return {name + WHOLE: joined, name + MIXED: mixed}


def mixed_rows(stack: StackedRuns, run: int) -> Tensor:
    """Sample which test rows are whole in the mixed test set. (N,)"""
    config = stack.configs[run]
    where = stack.run_rows[run].where("test")
    count = int(where.stop - where.start)
    order = torch.randperm(count, generator=named_generator("cpu", config.seed, "mixed"))
    return order < round(config.overlap * count)


def _join(pairs: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    return torch.cat([out for out, _ in pairs]), torch.cat([y for _, y in pairs])


def _metrics(job: tuple[int, str, Tensor, Tensor]) -> dict[str, float]:
    _, _, out, y = job
    return all_metrics(torch.softmax(out.double(), -1).numpy(), y.numpy())
