"""Make the runs that have no result yet: many at once on a GPU, one a core otherwise.

Also a command of its own, `python -m xvfl.experiments.execute`, for machines that have torch and
numpy and nothing else: it reads prepared data sets and writes results.
"""

import argparse
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import cache, partial
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

from xvfl.data.task import Task, load_task
from xvfl.experiments.jobs import FIGURES, IMAGES, Job, budget_of
from xvfl.experiments.runner import Result, run, run_many
from xvfl.experiments.store import Store

Load = Callable[[str, int], Task]
"""A data set by its name and number of parties."""
Done = Callable[[int, int, str], None]
"""Told after some runs: how many are made, of how many, and what they were."""


def execute(
    todo: Sequence[Job], store: Store, load: Load, device: str, workers: int, done: Done
) -> None:
    """Make runs and keep their results as they come."""
    if device == "cuda":
        made = on_gpu(todo, load)
    else:
        made = on_cores(todo, load, workers or os.cpu_count() or 1)
    name, count = hardware(device), 0
    for jobs, results in made:
        for job, result in zip(jobs, results, strict=True):
            store.add(job, result, name)
        count += len(jobs)
        done(count, len(todo), f"{jobs[-1].setting.method} at {jobs[-1].setting.rate:g}")


def on_gpu(todo: Sequence[Job], load: Load) -> Iterator[tuple[Sequence[Job], list[Result]]]:
    """Make the runs of one shape at once; those of images one by one."""
    device = torch.device("cuda")
    for _, some in groupby(todo, _shape):
        jobs = list(some)
        one = jobs[0]
        task = _task(load, one.dataset, one.parties, one.train_rows, one.test_rows)
        image = any(layout.image is not None for layout in task.layouts.values())
        size = 1 if image or one.setting.train.optimiser == "page" else len(jobs)
        for at in range(0, len(jobs), size):
            group = jobs[at : at + size]
            yield group, run_many(task, [job.setting for job in group], device)


def _shape(job: Job) -> Job:
    return replace(job, setting=job.setting.shape)


def on_cores(
    todo: Sequence[Job], load: Load, workers: int
) -> Iterator[tuple[Sequence[Job], list[Result]]]:
    """Make the runs one by one, one process a core."""
    if workers == 1:
        for job in todo:
            yield [job], [_run(load, job)]
        return
    with ProcessPoolExecutor(min(workers, len(todo)), get_context("spawn")) as pool:
        futures = {pool.submit(_run, load, job): job for job in todo}
        try:
            for future in as_completed(futures):
                yield [futures[future]], [future.result()]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _run(load: Load, job: Job) -> Result:
    torch.set_num_threads(1)
    return run(_task(load, job.dataset, job.parties, job.train_rows, job.test_rows), job.setting)


@cache
def _task(load: Load, dataset: str, parties: int, train_rows: int, test_rows: int) -> Task:
    return subset(load(dataset, parties), train_rows, test_rows)


def subset(task: Task, train_rows: int, test_rows: int) -> Task:
    """Leave so many training and test rows (0 = all), the same for every run."""
    if task.test is None:
        return task
    order = np.random.default_rng(0).permutation(len(task))
    wanted = (train_rows, test_rows)
    rows = [
        order[task.test[order] == test][: count or None]
        for test, count in zip((False, True), wanted, strict=True)
    ]
    return task.only(np.sort(np.concatenate(rows)))


def hardware(device: str) -> str:
    """Name the machine as far as results need it."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    return f"{os.cpu_count()} cores, {platform.machine()}"


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
    for dataset in given.datasets.split(","):
        store = Store(given.out / f"{dataset}.jsonl")
        for figure in given.figures.split(","):
            todo = store.missing(FIGURES[figure](dataset, budget_of(dataset, given.quick)))
            if given.methods:
                order = given.methods.split(",")
                todo = [job for job in todo if job.setting.method in order]
                todo.sort(key=lambda job: order.index(job.setting.method))
            for name, some in groupby(todo, _together):
                jobs, began = list(some), time.monotonic()
                if began - started > given.seconds:
                    return
                load = partial(load_from, given.tasks)
                execute(jobs, store, load, given.device, given.workers, lambda *_: None)
                took = time.monotonic() - began
                print(f"{dataset} {figure} {name}: {len(jobs)} runs, {took:.1f} s", flush=True)


def _together(job: Job) -> str:
    """Name the runs made before the clock is looked at: a method's, of images a single one."""
    setting = job.setting
    image = job.dataset in IMAGES
    return f"{setting.method} {setting.seed} {setting.rate:g}" if image else setting.method


if __name__ == "__main__":
    main()
