"""Where runs are made: here one after another, in processes of this machine, or by a Ray cluster.

A dispatch takes groups of runs to be made at once, and gives each group back with its results and
the hardware they were made on, as they come. Torch and numpy alone, but for Ray itself.
"""

import os
import platform
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import cache
from itertools import groupby
from multiprocessing import active_children, get_context
from typing import Any

import numpy as np
import torch

from xvfl.errors import ConfigError
from xvfl_lab.datasets.image_sets import halved
from xvfl_lab.experiments.jobs import Job
from xvfl_lab.experiments.runner import Result, run_many
from xvfl_lab.task import Task

Load = Callable[[str, int], Task]
"""A data set by its name and number of parties."""
Group = Sequence[Job]
Made = Iterator[tuple[Group, list[Result], str]]
Dispatch = Callable[[Sequence[Group], Load, str], Made]
"""Makes groups of runs, with the data sets of a loader, on a device."""


def groups(todo: Sequence[Job], load: Load, device: str) -> list[Group]:
    """Group runs: those of one shape at once on a GPU, but images; on a CPU each by itself."""
    if device != "cuda":
        return [[job] for job in todo]
    made: list[Group] = []
    for _, some in groupby(todo, lambda job: replace(job, setting=job.setting.shape)):
        jobs = list(some)
        image = any(layout.image is not None for layout in task_of(load, jobs[0]).layouts.values())
        size = 1 if image or jobs[0].setting.train.optimizer == "page" else len(jobs)
        made += [jobs[at : at + size] for at in range(0, len(jobs), size)]
    return made


def here(todo: Sequence[Group], load: Load, device: str) -> Made:
    """Make the runs in this process."""
    for jobs in todo:
        yield jobs, _make(task_of(load, jobs[0]), jobs, device), hardware(device)


def in_processes(workers: int) -> Dispatch:
    """Make the runs in so many processes of this machine, each with one thread."""

    def dispatch(todo: Sequence[Group], load: Load, device: str) -> Made:
        others = set(active_children())
        with ProcessPoolExecutor(min(workers, len(todo)), get_context("spawn")) as pool:
            futures = {pool.submit(_load_and_make, load, jobs, device): jobs for jobs in todo}
            try:
                for future in as_completed(futures):
                    yield futures[future], future.result(), hardware(device)
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
                if not all(future.done() for future in futures):
                    # Whoever stops does not wait for runs that nobody will keep.
                    for process in set(active_children()) - others:
                        process.terminate()
                        process.join()

    return dispatch


def on_ray(address: str) -> Dispatch:
    """Hand the runs to a Ray cluster: one core or one GPU for each group.

    The cluster's machines need xvfl installed; data sets are sent to them once.
    """

    def dispatch(todo: Sequence[Group], load: Load, device: str) -> Made:
        ray = _connected(address)
        needs = {"num_gpus": 1} if device == "cuda" else {"num_cpus": 1}
        remote = ray.remote(**needs)(_make_there)
        sent: dict[tuple[Any, ...], Any] = {}
        waiting: dict[Any, Group] = {}
        try:
            for jobs in todo:
                name = _data_of(jobs[0])
                if name not in sent:
                    sent[name] = ray.put(task_of(load, jobs[0]))
                waiting[remote.remote(sent[name], list(jobs), device)] = jobs
            while waiting:
                ready, _ = ray.wait(list(waiting), num_returns=1)
                results, where = ray.get(ready[0])
                yield waiting.pop(ready[0]), results, where
        finally:
            for left in waiting:
                ray.cancel(left)

    return dispatch


def _connected(address: str) -> Any:
    try:
        import ray
    except ModuleNotFoundError as error:
        raise ConfigError("--ray: needs the package ray: pip install 'xvfl[ray]'") from error
    if not ray.is_initialized():
        try:
            ray.init(address=address, log_to_driver=False)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ConfigError(
                f"--ray: expected a Ray cluster at {address!r}, found none; start one with "
                "`ray start --head`, or give its address"
            ) from error
    return ray


def _make_there(task: Task, jobs: Group, device: str) -> tuple[list[Result], str]:
    torch.set_num_threads(1)
    return _make(task, jobs, device), hardware(device)


def _load_and_make(load: Load, jobs: Group, device: str) -> list[Result]:
    torch.set_num_threads(1)
    return _make(task_of(load, jobs[0]), jobs, device)


def _make(task: Task, jobs: Group, device: str) -> list[Result]:
    return run_many(task, [job.setting for job in jobs], torch.device(device))


def task_of(load: Load, job: Job) -> Task:
    """Load a run's data set, once in a process, cut to its rows."""
    return _task(load, *_data_of(job))


def _data_of(job: Job) -> tuple[str, int, int, int, bool]:
    return job.dataset, job.parties, job.train_rows, job.test_rows, job.halved


@cache
def _task(
    load: Load, dataset: str, parties: int, train_rows: int, test_rows: int, halve: bool
) -> Task:
    task = subset(load(dataset, parties), train_rows, test_rows)
    return halved(task) if halve else task


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
