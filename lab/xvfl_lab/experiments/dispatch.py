"""Where runs are computed: in this process, in several processes, or on a Ray cluster.

A dispatch takes groups of runs, computes the runs of a group at once, and yields each group with
its results and hardware as it finishes. Torch and numpy alone, except for Ray itself.
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
from numpy.typing import NDArray

from xvfl.errors import ConfigError
from xvfl.primitives.layout import any_image
from xvfl_lab.datasets.image_sets import half_resolution
from xvfl_lab.experiments.figures import Job
from xvfl_lab.experiments.runner import Result, run_many
from xvfl_lab.task import Task

Load = Callable[[str, int], Task]
"""Loads a data set by its name and number of parties."""
Group = Sequence[Job]
GroupResults = Iterator[tuple[Group, list[Result], str]]
Dispatch = Callable[[Sequence[Group], Load, str], GroupResults]
"""Computes groups of runs, with the data sets of a loader, on a device."""


def groups(todo: Sequence[Job], load: Load, device: str) -> list[Group]:
    """Group runs: those of one shape together on a GPU, except images; on a CPU one by one."""
    if device != "cuda":
        return [[job] for job in todo]
    grouped: list[Group] = []
    for _, some in groupby(todo, lambda job: replace(job, config=job.config.shape)):
        jobs = list(some)
        image = any_image(task_of(load, jobs[0]).layouts)
        size = 1 if image or jobs[0].config.train.optimizer == "page" else len(jobs)
        grouped += [jobs[at : at + size] for at in range(0, len(jobs), size)]
    return grouped


def in_this_process(todo: Sequence[Group], load: Load, device: str) -> GroupResults:
    """Compute the runs in this process."""
    for jobs in todo:
        yield jobs, *_run(task_of(load, jobs[0]), jobs, device)


def in_processes(workers: int) -> Dispatch:
    """Compute the runs in several processes of this machine, each with one thread."""

    def dispatch(todo: Sequence[Group], load: Load, device: str) -> GroupResults:
        others = set(active_children())
        with ProcessPoolExecutor(min(workers, len(todo)), get_context("spawn")) as pool:
            futures = {pool.submit(_load_and_run, load, jobs, device): jobs for jobs in todo}
            finished = False
            try:
                for future in as_completed(futures):
                    yield futures[future], *future.result()
                finished = True
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
                if not finished:
                    # Stop the processes: nobody will store their results.
                    for process in set(active_children()) - others:
                        process.terminate()
                        # The pool's own thread may reap the process first: poll until it ended.
                        while process.is_alive():
                            process.join(0.1)

    return dispatch


def on_ray(address: str) -> Dispatch:
    """Compute the runs on a Ray cluster, with one core or one GPU for each group.

    The cluster's machines need xvfl and xvfl-lab; each data set is sent to them once.
    """

    def dispatch(todo: Sequence[Group], load: Load, device: str) -> GroupResults:
        ray = _connect(address)
        needs = {"num_gpus": 1} if device == "cuda" else {"num_cpus": 1}
        remote = ray.remote(**needs)(_run_remotely)
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
                yield waiting.pop(ready[0]), *ray.get(ready[0])
        finally:
            for left in waiting:
                ray.cancel(left)

    return dispatch


def _connect(address: str) -> Any:
    try:
        import ray
    except ModuleNotFoundError as error:
        raise ConfigError("--ray: needs the package ray: pip install 'xvfl-lab[ray]'") from error
    if not ray.is_initialized():
        try:
            ray.init(address=address, log_to_driver=False)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ConfigError(
                f"--ray: expected a Ray cluster at {address!r}, found none; start one with "
                "`ray start --head`, or pass its address"
            ) from error
    return ray


def _run_remotely(task: Task, jobs: Group, device: str) -> tuple[list[Result], str]:
    torch.set_num_threads(1)
    return _run(task, jobs, device)


def _load_and_run(load: Load, jobs: Group, device: str) -> tuple[list[Result], str]:
    return _run_remotely(task_of(load, jobs[0]), jobs, device)


def _run(task: Task, jobs: Group, device: str) -> tuple[list[Result], str]:
    """Compute the runs of a group; return the results and the hardware."""
    configs = [job.config for job in jobs]
    return run_many(task, configs, torch.device(device)), hardware(device)


def task_of(load: Load, job: Job) -> Task:
    """Load the data set of a run with the rows of its budget; cached in this process."""
    return _task(load, *_data_of(job))


def _data_of(job: Job) -> tuple[str, int, int, int, bool]:
    return job.dataset, job.parties, job.train_rows, job.test_rows, job.half_resolution


@cache
def _task(
    load: Load, dataset: str, parties: int, train_rows: int, test_rows: int, half: bool
) -> Task:
    task = subset(load(dataset, parties), train_rows, test_rows)
    return half_resolution(task) if half else task


def subset(task: Task, train_rows: int, test_rows: int) -> Task:
    """Select a fixed random sample of training and test rows (0 = all)."""
    return task if task.test is None else task.take(sampled_rows(task, train_rows, test_rows))


def sampled_rows(task: Task, train_rows: int, test_rows: int) -> NDArray[np.int64]:
    """Return the rows of a fixed random sample of training and test rows (0 = all)."""
    assert task.test is not None, "the test rows are not fixed"
    order = np.random.default_rng(0).permutation(len(task))
    counts = {False: train_rows, True: test_rows}
    rows = [order[task.test[order] == test][: count or None] for test, count in counts.items()]
    return np.sort(np.concatenate(rows))


def hardware(device: str) -> str:
    """Describe the machine as results report it."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    return f"{os.cpu_count()} cores, {platform.machine()}"
