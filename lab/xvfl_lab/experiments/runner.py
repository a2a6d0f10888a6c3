"""Train and test methods in scenarios, many runs at once where they fit. Torch and numpy alone.

One protocol for every method: masks drawn by the scenario's seed, a fixed budget of epochs, test
rows all non-aligned; the same rows whole, and a mix of both with training's overlap, apart.
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
from xvfl_lab.experiments.trial import Setting, Trial
from xvfl_lab.task import Task

ZERO_FILL = " zero-filled"
MIXED = " mixed"
WHOLE = " whole"


@dataclass(frozen=True)
class Result:
    """Metrics of every way to predict, over (row, party) pairs where the party is incomplete.

    `local/NAME` is one party's share of `local`; `local mixed` and `local whole` are over all pairs
    of the mixed and of the whole test rows.
    """

    setting: Setting
    metrics: dict[str, dict[str, float]]
    seconds: float
    """Of the run, or its share of runs made together."""
    majority: float
    """Accuracy of always saying the commonest class of the test rows."""


def run(task: Task, setting: Setting) -> Result:
    """Train and test one method in one scenario."""
    return run_many(task, [setting])[0]


def run_many(
    task: Task, settings: Sequence[Setting], device: torch.device | None = None
) -> list[Result]:
    """Train and test runs of one shape at once."""
    started = time.perf_counter()
    device = device or torch.device("cpu")
    with torch.random.fork_rng(devices=[]), limit_threads(any_image(task.layouts), device):
        trial = Trial(task, settings, device)
        trial.train()
        metrics = test(trial)
    seconds = (time.perf_counter() - started) / len(settings)
    majority = majority_rate(trial.rows("test").y.cpu().numpy())
    return [
        Result(setting, found, seconds, majority)
        for setting, found in zip(settings, metrics, strict=True)
    ]


def test(trial: Trial) -> list[dict[str, dict[str, float]]]:
    """Measure every mode on the test rows; X-VFL also with its completion left out."""
    ways = predictions(trial, trial.method, "")
    if isinstance(trial.method, XVFL):
        plain = XVFL(trial.method.heads, trial.method.weights, completing=False)
        ways |= predictions(trial, plain, ZERO_FILL)
    jobs = [(run, name, *pair) for name, pairs in ways.items() for run, pair in enumerate(pairs)]
    found: list[dict[str, dict[str, float]]] = [{} for _ in trial.seeds]
    with ThreadPoolExecutor() as pool:
        for (run, name, _, _), metrics in zip(jobs, pool.map(_metrics, jobs), strict=True):
            found[run][name] = metrics
    return found


Pairs = list[tuple[Tensor, Tensor]]
"""Of every run: logits and labels."""


def predictions(trial: Trial, method: Method, suffix: str) -> dict[str, Pairs]:
    """Predict the test rows in every mode."""
    made: dict[str, Pairs] = {}
    names = list(trial.task.layouts)
    for mode in sorted(method.modes):
        if mode == "collaborative":
            test, whole = (decide(trial, method, part, mode, 0) for part in ("test", "whole"))
            aligned = [mixed_rows(trial, run) for run in range(len(trial.seeds))]
            made[mode + suffix] = test
            made[mode + suffix + WHOLE] = whole
            made[mode + suffix + MIXED] = [
                (torch.where(a.unsqueeze(1), w, t), y)
                for a, (t, y), (w, _) in zip(aligned, test, whole, strict=True)
            ]
        else:
            each = [decide(trial, method, "test", mode, i) for i in range(len(names))]
            made |= alone(trial, each, mode + suffix)
            if mode == "local":
                without = [decide(trial, method, "whole", mode, i) for i in range(len(names))]
                made |= alone_otherwise(trial, each, without, mode + suffix)
    return made


def decide(trial: Trial, method: Method, part: str, mode: Mode, party: int) -> Pairs:
    """Predict a part's rows in a mode, run by run."""
    rows = trial.rows(part)  # type: ignore[arg-type]
    out = logits(method, trial.federation, rows, mode, party)
    return list(zip(out.chunk(rows.runs), rows.y.cpu().chunk(rows.runs), strict=True))


def alone(trial: Trial, each: Sequence[Pairs], name: str) -> dict[str, Pairs]:
    """Take the pairs where the party is incomplete: of all parties, and of each."""
    incomplete = trial.incomplete("test")
    made = {
        f"{name}/{party}": [
            (out[mine], y[mine]) for (out, y), mine in zip(pairs, incomplete[:, :, i], strict=True)
        ]
        for i, (party, pairs) in enumerate(zip(trial.task.layouts, each, strict=True))
    }
    joined = [_join(of_run) for of_run in zip(*made.values(), strict=True)]
    return {name: joined, **made}


def alone_otherwise(
    trial: Trial, test: Sequence[Pairs], whole: Sequence[Pairs], name: str
) -> dict[str, Pairs]:
    """Take all pairs of the whole rows, and of the mixed ones."""
    incomplete = trial.incomplete("test")
    mixed = []
    for run in range(len(trial.seeds)):
        aligned = mixed_rows(trial, run)
        parts = []
        for i, (with_gaps, without) in enumerate(zip(test, whole, strict=True)):
            gaps = (incomplete[run, :, i] & ~aligned).unsqueeze(1)
            parts.append((torch.where(gaps, with_gaps[run][0], without[run][0]), without[run][1]))
        mixed.append(_join(parts))
    joined = [_join(of_run) for of_run in zip(*whole, strict=True)]
    return {name + WHOLE: joined, name + MIXED: mixed}


def mixed_rows(trial: Trial, run: int) -> Tensor:
    """Draw which test rows are whole in the mixed test set. (N,)"""
    setting = trial.settings[run]
    where = trial.drawn[run].where("test")
    count = int(where.stop - where.start)
    order = torch.randperm(count, generator=named_generator("cpu", setting.seed, "mixed"))
    return order < round(setting.overlap * count)


def _join(pairs: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    return torch.cat([out for out, _ in pairs]), torch.cat([y for _, y in pairs])


def _metrics(job: tuple[int, str, Tensor, Tensor]) -> dict[str, float]:
    _, _, out, y = job
    return all_metrics(torch.softmax(out.double(), -1).numpy(), y.numpy())
