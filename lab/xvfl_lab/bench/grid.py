"""Benchmark of all runs over missing rates of three real tables; runs only if named."""

import math
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from xvfl.errors import ConfigError
from xvfl_lab.bench.outcome import Claim, Line, Outcome
from xvfl_lab.bench.sections import Plan
from xvfl_lab.experiments.compare import mean
from xvfl_lab.experiments.dispatch import Load
from xvfl_lab.experiments.execute import choose_dispatch, execute, load_from
from xvfl_lab.experiments.figures import Job, budget_for, missing_rates
from xvfl_lab.experiments.run_store import RunStore
from xvfl_lab.experiments.runner import Result

TABLES, SEEDS = ("bank", "avazu", "physionet2012"), 5
MODES = ("local", "assisted", "peers", "collaborative")
MINUTES, ERRORS = 10.0, 1.0
LEAST = 1e-4
"""Smallest standard error of an accuracy, for cases where all seeds agree."""


def grid(plan: Plan) -> Outcome:
    """Compute all runs of the three tables' figures, five seeds; compare with published ones.

    The time includes reading, sampling, training, testing and storing.
    """
    published = {name: _load_published(name, plan) for name in TABLES}
    computed, lines, total = {}, [], 0.0
    for name in TABLES:
        started = time.perf_counter()
        computed[name] = _compute(name, plan)
        seconds = time.perf_counter() - started
        lines.append(Line("grid", name, f"{len(computed[name])} runs", seconds, "s"))
        total += seconds
    minutes = Claim("grid of tables: minutes", total / 60, MINUTES, False)
    outcome = Outcome(tuple(lines), (minutes,))
    for name, there in published.items():
        outcome += _compare(name, computed[name], there) if there else Outcome()
    return outcome


def jobs_of(name: str, plan: Plan) -> list[Job]:
    """List a table's runs: five seeds; quick: one seed and rate."""
    all_jobs = missing_rates(name, budget_for(name, plan.quick))
    if not plan.quick:
        return [job for job in all_jobs if job.config.seed < SEEDS]
    return [job for job in all_jobs if job.config.seed == 0 and job.config.rate == 0.5]


def apart(computed: Sequence[Result], published: Sequence[Result]) -> list[float]:
    """Return the differences of mean accuracies in standard errors, by method, mode and rate."""
    distances = []
    for method, rate in dict.fromkeys((r.config.name, r.config.rate) for r in published):
        there = [r for r in published if (r.config.name, r.config.rate) == (method, rate)]
        for mode in MODES:
            if mode in there[0].metrics:
                then, now = (mean(some, (method, mode), rate) for some in (there, computed))
                error = max(then.deviation / math.sqrt(len(there)), LEAST)
                distances.append(abs(now.mean - then.mean) / error)
    return distances


def _compute(name: str, plan: Plan) -> list[Result]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    jobs, dispatch = jobs_of(name, plan), choose_dispatch(device, 0)
    with tempfile.TemporaryDirectory() as folder:
        store = RunStore(Path(folder) / f"{name}.jsonl")
        execute(jobs, store, _loader(plan), device, dispatch, lambda *_: None)
        return store.get(jobs)


def _load_published(name: str, plan: Plan) -> list[Result]:
    if plan.results is None:
        print(f"{name}: no folder of published runs (--results), nothing to compare")
        return []
    path, jobs = plan.results / f"{name}.jsonl", jobs_of(name, plan)
    results = RunStore(path).get(jobs)
    if len(results) < len(jobs):
        raise ConfigError(
            f"{path}: expected the {len(jobs)} runs to compare with, got {len(results)}"
        )
    return results


def _compare(name: str, computed: Sequence[Result], published: Sequence[Result]) -> Outcome:
    errors = apart(computed, published)
    within, count = sum(each <= ERRORS for each in errors), len(errors)
    return Outcome(
        (
            Line("grid", name, f"of {count} accuracies within 1 error", within, ""),
            Line("grid", name, "accuracies apart, most", max(errors), "errors"),
        ),
        (Claim(f"{name}: accuracies apart, mean, in errors", sum(errors) / count, ERRORS, False),),
    )


def _loader(plan: Plan) -> Load:
    if plan.tasks is not None:
        return partial(load_from, plan.tasks)
    from xvfl_lab.datasets import prepare

    return prepare
