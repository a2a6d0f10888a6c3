"""Compute the runs that have no result yet.

Also a command, `python -m xvfl_lab.experiments.execute`, for machines that have torch and numpy
alone: it reads prepared data sets and writes results.
"""

import argparse
import math
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path

from xvfl_lab.experiments.dispatch import (
    Dispatch,
    Load,
    groups,
    in_processes,
    in_this_process,
    on_ray,
    task_of,
)
from xvfl_lab.experiments.figures import FIGURES, IMAGES, Job, budget_for
from xvfl_lab.experiments.run_store import RunStore
from xvfl_lab.task import Task, load_task

OnProgress = Callable[[int, int, str], None]
"""Called after each group with the finished runs, the total, and the last run's name."""


def execute(
    todo: Sequence[Job],
    store: RunStore,
    load: Load,
    device: str,
    dispatch: Dispatch,
    on_progress: OnProgress,
) -> None:
    """Compute runs and store their results as they finish."""
    count = 0
    for jobs, results, where in dispatch(groups(todo, load, device), load, device):
        for job, result in zip(jobs, results, strict=True):
            store.add(job, result, where, task_of(load, job).digest())
        count += len(jobs)
        on_progress(count, len(todo), f"{jobs[-1].config.name} at {jobs[-1].config.rate:g}")


def choose_dispatch(device: str, workers: int, ray: str | None = None) -> Dispatch:
    """Choose a dispatch: a Ray cluster, a GPU, or `workers` processes (0 = one per core)."""
    if ray is not None:
        return on_ray(ray)
    workers = 1 if device == "cuda" else workers or os.cpu_count() or 1
    return in_this_process if workers == 1 else in_processes(workers)


def load_from(folder: Path, name: str, parties: int) -> Task:
    """Read a prepared data set."""
    return load_task(folder / f"{name}-{parties}.npz")


def main() -> None:
    """Compute the runs of figures from prepared data sets; needs torch and numpy alone."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("figures", help="names of figures, separated by commas")
    parser.add_argument("datasets", help="names of data sets, separated by commas")
    parser.add_argument("--tasks", type=Path, required=True, help="folder of NAME-PARTIES.npz")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument(
        "--methods", default="", help="only these methods, in this order, separated by commas"
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seconds", type=float, default=math.inf, help="start no run after this")
    options = parser.parse_args()
    started = time.monotonic()
    dispatch = choose_dispatch(options.device, options.workers)
    for dataset in options.datasets.split(","):
        store = RunStore(options.out / f"{dataset}.jsonl")
        for figure in options.figures.split(","):
            load = partial(load_from, options.tasks)
            wanted = FIGURES[figure](dataset, budget_for(dataset, options.quick))
            todo = store.missing(wanted, task_of(load, wanted[0]).digest())
            if options.methods:
                order = options.methods.split(",")
                todo = [job for job in todo if job.config.name in order]
                todo.sort(key=lambda job: order.index(job.config.name))
            for name, group in groupby(todo, _group_name):
                jobs, began = list(group), time.monotonic()
                if began - started > options.seconds:
                    return
                execute(jobs, store, load, options.device, dispatch, lambda *_: None)
                took = time.monotonic() - began
                print(f"{dataset} {figure} {name}: {len(jobs)} runs, {took:.1f} s", flush=True)


def _group_name(job: Job) -> str:
    """Name the runs between two checks of the time limit: a method's; a single run of images."""
    config = job.config
    image = job.dataset in IMAGES
    return f"{config.name} {config.seed} {config.rate:g}" if image else config.name


if __name__ == "__main__":
    main()
