"""The whole grid over missing rates of three real tables, made anew and timed: by name alone."""

import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from xvfl.bench.outcome import Claim, Line, Outcome
from xvfl.bench.sections import Plan
from xvfl.experiments.compare import Mean, mean
from xvfl.experiments.dispatch import Load
from xvfl.experiments.execute import choose_dispatch, execute, load_from
from xvfl.experiments.jobs import Job, budget_of, missing_rates
from xvfl.experiments.runner import Result
from xvfl.experiments.store import Store

TABLES, SEEDS = ("bank", "avazu", "physionet2012"), 5
MODES = ("local", "assisted", "peers", "collaborative")
MINUTES, ERRORS = 10.0, 1.0


def grid(plan: Plan) -> Outcome:
    """Make every run of the three tables' figures, five seeds; compare with published accuracies.

    The time is all it takes: reading, drawing, training, testing, keeping results.
    """
    load, device = _loader(plan), "cuda" if torch.cuda.is_available() else "cpu"
    made: dict[str, list[Result]] = {}
    found, total = Outcome(), 0.0
    for name in TABLES:
        jobs, started = jobs_of(name, plan), time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            store = Store(Path(folder) / f"{name}.jsonl")
            execute(jobs, store, load, device, choose_dispatch(device, 0), lambda *_: None)
            made[name] = store.get(jobs)
        seconds = time.perf_counter() - started
        total += seconds
        found += Outcome((Line("grid", name, f"{len(jobs)} runs", seconds, "s"),))
    found += Outcome(claims=(Claim("grid of tables: minutes", total / 60, MINUTES, False),))
    if plan.results is not None:
        for name in TABLES:
            found += _compared(name, made[name], jobs_of(name, plan), plan.results)
    return found


def jobs_of(name: str, plan: Plan) -> list[Job]:
    """List a table's runs: five seeds, or the least that is a grid."""
    all_jobs = missing_rates(name, budget_of(name, plan.quick))
    if not plan.quick:
        return [job for job in all_jobs if job.setting.seed < SEEDS]
    return [job for job in all_jobs if job.setting.seed == 0 and job.setting.rate == 0.5]


def apart(made: Sequence[Result], published: Sequence[Result]) -> list[float]:
    """Give how far mean accuracies are apart, in standard errors, by method, mode and rate."""
    found = []
    for method in dict.fromkeys(each.setting.method for each in published):
        for rate in sorted({each.setting.rate for each in published}):
            there = [r for r in published if (r.setting.method, r.setting.rate) == (method, rate)]
            for mode in MODES:
                if mode in there[0].metrics:
                    then, now = (mean(some, (method, mode), rate) for some in (there, made))
                    found.append(_errors(then, now, len(there)))
    return found


def _errors(then: Mean, now: Mean, seeds: int) -> float:
    error = then.deviation / seeds**0.5
    gap = abs(now.mean - then.mean)
    return gap / error if error else gap and float("inf")


def _compared(name: str, made: list[Result], jobs: list[Job], results: Path) -> Outcome:
    published = Store(results / f"{name}.jsonl").get(jobs)
    if len(published) < len(jobs):
        return Outcome()
    errors = sorted(apart(made, published))
    middle, within = errors[len(errors) // 2], sum(each <= ERRORS for each in errors)
    return Outcome(
        (Line("grid", name, f"of {len(errors)} accuracies within 1 error", within, ""),),
        (Claim(f"{name}: accuracies apart, median, in errors", middle, ERRORS, False),),
    )


def _loader(plan: Plan) -> Load:
    if plan.tasks is not None:
        return partial(load_from, plan.tasks)
    from xvfl.datasets import prepare

    return prepare
