"""Train and test methods in scenarios, several runs at once where they fit. Torch and numpy alone.

The same protocol for every method: masks sampled by the scenario's seed, a fixed number of epochs,
test rows all non-aligned. The same rows whole, and a mix with training's overlap, are measured
separately.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from xvfl.methods.base import Method, Mode
from xvfl.methods.pooling import without_completion
from xvfl.primitives.metrics import all_metrics, majority_rate
from xvfl.primitives.random import named_generator
from xvfl.training.predict import logits
from xvfl_lab.experiments.stacked_runs import CPU, Part, RunConfig, StackedRuns, isolated
from xvfl_lab.task import Task

ZERO_FILL = " zero-filled"
MIXED = " mixed"
WHOLE = " whole"
Pairs = list[tuple[Tensor, Tensor]]
"""Logits and labels of every run, over some (row, party) pairs."""


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


def run_many(task: Task, configs: Sequence[RunConfig], device: torch.device = CPU) -> list[Result]:
    """Train and test runs of one shape at once."""
    started = time.perf_counter()
    with isolated(task, device):
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
    plain = without_completion(stack.method)
    if plain is not None:
        ways |= predictions(stack, plain, ZERO_FILL)
    return metrics_of(ways)


def metrics_of(ways: Mapping[str, Pairs]) -> list[dict[str, dict[str, float]]]:
    """Compute the metrics of every way, run by run."""
    with ThreadPoolExecutor() as pool:
        by_way = {
            name: pool.map(_metrics, *zip(*pairs, strict=True)) for name, pairs in ways.items()
        }
        runs = zip(*by_way.values(), strict=True)
        return [dict(zip(by_way, of_run, strict=True)) for of_run in runs]


@dataclass(frozen=True)
class ScoredRows:
    """What decides which predictions of the test rows count. Shapes: k parties, R runs, N rows."""

    y: Tensor
    """(R, N) class numbers."""
    incomplete: Tensor
    """(k, R, N) pairs that the scenario made incomplete."""
    whole: Tensor
    """(R, N) rows that are whole in the mixed test set."""
    parties: tuple[str, ...]


Predict = Callable[[Part, Mode, Iterable[int]], Tensor]
"""Predicts a part's rows in a mode, by party and run. (k, R, N, C)"""


def predictions(stack: StackedRuns, method: Method, suffix: str) -> dict[str, Pairs]:
    """Predict the test rows of a method in every mode."""
    y = stack.rows("test").y.cpu().view(len(stack.seeds), -1)
    incomplete = stack.incomplete("test").movedim(2, 0)
    whole = mixed_rows(stack.configs, y.shape[1])
    rows = ScoredRows(y, incomplete, whole, tuple(stack.task.layouts))
    return ways_of(rows, method.modes, partial(predict, stack, method), suffix)


def ways_of(
    rows: ScoredRows, modes: Iterable[Mode], predict: Predict, suffix: str = ""
) -> dict[str, Pairs]:
    """Select the predictions that count, by mode, party and kind of rows."""
    ways: dict[str, Pairs] = {}
    for mode in sorted(modes):
        name, together = mode + suffix, mode == "collaborative"
        parties = range(1 if together else len(rows.incomplete))
        counted = torch.ones_like(rows.incomplete[:1]) if together else rows.incomplete
        test = predict("test", mode, parties)
        ways[name] = select(test, rows.y, counted)
        if not together:
            for i, party in enumerate(rows.parties):
                ways[f"{name}/{party}"] = select(test[i : i + 1], rows.y, counted[i : i + 1])
        if mode in ("local", "collaborative"):
            whole = predict("whole", mode, parties)
            mixed = torch.where((counted & ~rows.whole).unsqueeze(-1), test, whole)
            for kind, out in ((WHOLE, whole), (MIXED, mixed)):
                ways[name + kind] = select(out, rows.y, torch.ones_like(counted))
    return ways


def predict(
    stack: StackedRuns, method: Method, part: Part, mode: Mode, parties: Iterable[int]
) -> Tensor:
    """Predict a part's rows in a mode, by party and run. (k, R, N, C)"""
    rows = stack.rows(part)
    out = [logits(method, stack.federation, rows, mode, party) for party in parties]
    return torch.stack([torch.stack(each.chunk(rows.runs)) for each in out])


def select(out: Tensor, y: Tensor, counted: Tensor) -> Pairs:
    """Select pairs of every run by a mask (k, R, N); out (k, R, N, C), y (R, N)."""
    y = y.expand(counted.shape)
    return [(out[:, r][mine], y[:, r][mine]) for r, mine in enumerate(counted.unbind(1))]


def mixed_rows(configs: Sequence[RunConfig], count: int) -> Tensor:
    """Sample which test rows are whole in the mixed test set. (R, N)"""
    orders = [
        torch.randperm(count, generator=named_generator("cpu", config.seed, "mixed"))
        for config in configs
    ]
    whole = [round(config.overlap * count) for config in configs]
    return torch.stack(orders) < torch.tensor(whole).unsqueeze(1)


def _metrics(out: Tensor, y: Tensor) -> dict[str, float]:
    return all_metrics(torch.softmax(out.double(), -1).numpy(), y.numpy())
