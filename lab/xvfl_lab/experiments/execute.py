"""Make the runs that have no result yet, wherever they are dispatched to.

Also a command of its own, `python -m xvfl_lab.experiments.execute`, for machines that have torch and
numpy and nothing else: it reads prepared data sets and writes results.
"""

import argparse
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path

import numpy as np

from xvfl_lab.experiments.dispatch import (
    Dispatch,
    Load,
    groups,
    here,
    in_processes,
    on_ray,
    task_of,
)
from xvfl_lab.experiments.jobs import FIGURES, IMAGES, Job, budget_of
from xvfl_lab.experiments.run_store import Store
from xvfl_lab.task import Task, load_task

Done = Callable[[int, int, str], None]
"""Told after some runs: how many are made, of how many, and what they were."""


def execute(
    todo: Sequence[Job], store: Store, load: Load, device: str, dispatch: Dispatch, done: Done
) -> None:
    """Make runs and keep their results as they come."""
    count = 0
    for jobs, results, where in dispatch(groups(todo, load, device), load, device):
        for job, result in zip(jobs, results, strict=True):
            store.add(job, result, where, task_of(load, job).digest())
        count += len(jobs)
        done(count, len(todo), f"{jobs[-1].setting.method} at {jobs[-1].setting.rate:g}")


def choose_dispatch(device: str, workers: int, ray: str | None = None) -> Dispatch:
    """Choose where runs are made: a Ray cluster, a GPU, or `workers` processes (0 = one a core)."""
    if ray is not None:
        return on_ray(ray)
    workers = 1 if device == "cuda" else workers or os.cpu_count() or 1
    return here if workers == 1 else in_processes(workers)


def load_from(folder: Path, name: str, parties: int) -> Task:
    """Read a prepared data set."""
    return load_task(folder / f"{name}-{parties}.npz")


def main() -> None:
    """Make the runs of figures from prepared data sets, without any other package."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("figures", help="names of figures, separated by commas")
    parser.add_argument("datasets", help="names of data sets, separated by commas")
    parser.add_argument("--tasks", type=Path, required=True, help="folder of NAME-PARTIES.npz")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument(
        "--methods", default="", help="only these, in this order, separated by commas"
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seconds", type=float, default=np.inf, help="begin nothing after these")
    given = parser.parse_args()
    started = time.monotonic()
    dispatch = choose_dispatch(given.device, given.workers)
    for dataset in given.datasets.split(","):
        store = Store(given.out / f"{dataset}.jsonl")
        for figure in given.figures.split(","):
            load = partial(load_from, given.tasks)
            wanted = FIGURES[figure](dataset, budget_of(dataset, given.quick))
            todo = store.missing(wanted, task_of(load, wanted[0]).digest())
            if given.methods:
                order = given.methods.split(",")
                todo = [job for job in todo if job.setting.method in order]
                todo.sort(key=lambda job: order.index(job.setting.method))
            for name, some in groupby(todo, _together):
                jobs, began = list(some), time.monotonic()
                if began - started > given.seconds:
                    return
                execute(jobs, store, load, given.device, dispatch, lambda *_: None)
                took = time.monotonic() - began
                print(f"{dataset} {figure} {name}: {len(jobs)} runs, {took:.1f} s", flush=True)


def _together(job: Job) -> str:
    """Name the runs made before the clock is looked at: a method's, of images a single one."""
    setting = job.setting
    image = job.dataset in IMAGES
    return f"{setting.method} {setting.seed} {setting.rate:g}" if image else setting.method


if __name__ == "__main__":
    main()
