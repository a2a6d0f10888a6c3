"""Compare `xvfl+` with trees on any CSV files, with features made missing.

    python -m xvfl_lab.experiments.other_tables run "MedExp.csv:med>median:" "HI.csv:hhi=yes:hhi2"

A table is FILE:LABEL:COLUMNS (`xvfl_lab.datasets.csv_tables`). Two parties hold every second column
each; at most 14,000 rows train, of which 15 % validate; at most 6,000 others test. The rows, masks
and scores are those of `xvfl-lab reproduce trees`; `xvfl+` has the defaults of one process.

`run` is all of these steps, which are also commands of their own: `prepare` writes each table as a
file of arrays, NAME-2.npz; `train` computes the runs of `xvfl+` with torch and numpy alone, on a
GPU those of a table at once; `trees` needs LightGBM in addition; `summary` prints who is ahead.
Each finished run is a line of JSON in `--out`, and is not computed again.
"""

import argparse
import math
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

import torch

from xvfl.config import NO_PROTECTION, LossConfig, NetConfig, TrainConfig
from xvfl.errors import DataWarning
from xvfl.methods.base import Mode
from xvfl.options import resolve_options
from xvfl.system.files import read_jsonl
from xvfl.version import VERSION
from xvfl_lab.experiments.dispatch import hardware
from xvfl_lab.experiments.execute import load_from
from xvfl_lab.experiments.figures import OURS
from xvfl_lab.experiments.other_tables_summary import summary
from xvfl_lab.experiments.runner import (
    MIXED,
    Pairs,
    Predict,
    ScoredRows,
    metrics_of,
    predict,
    test,
    ways_of,
)
from xvfl_lab.experiments.stacked_runs import RunConfig, StackedRuns, isolated, split_rows
from xvfl_lab.experiments.tree_runs import (
    TREES,
    TREES_POOLED,
    TreeJob,
    TreeRun,
    fit_run,
    score_run,
)
from xvfl_lab.files import append_lines
from xvfl_lab.task import Task, save_task

RATES = (0.0, 0.5, 0.9)
SEEDS = 5
PARTIES = 2
ALL_ROWS = "-all"
"""Suffix of a table with all of its rows."""
MODES: tuple[Mode, ...] = ("collaborative", "local")
VALIDATION = " validation"
Record = dict[str, Any]
"""Result of a run: table, name, rate, seed, digest of the data, numbers of rows, AUROC of each way
to predict, seconds, hardware, version."""


@dataclass(frozen=True)
class Work:
    """Runs of one table that are computed at once."""

    folder: Path
    table: str
    name: str
    """A method, `trees` or `trees pooled`."""
    scenarios: tuple[tuple[float, int], ...]
    """Rate and seed of each run."""
    device: str = "cpu"

    def __str__(self) -> str:
        (rate, seed), count = self.scenarios[0], len(self.scenarios)
        runs = f"{count} runs" if count > 1 else f"R_miss {rate:g}, seed {seed}"
        return f"{self.table} {self.name}: {runs}"


def default_run(task: Task, method: str = OURS) -> RunConfig:
    """Configure a run of a method with the defaults of one process."""
    train_rows = len(split_rows(task, RunConfig(method, 0.0, 0))["train"])
    options = resolve_options(
        NetConfig(),
        LossConfig(method=method),
        TrainConfig(),
        NO_PROTECTION,
        federated=False,
        image=False,
        parties=len(task.layouts),
        rows=train_rows,
        numbers=max(len(layout.numbers) for layout in task.layouts.values()),
    )
    return RunConfig(
        method,
        0.0,
        0,
        net=options.net,
        loss=options.loss,
        train=options.train,
        weights="calibrated",
    )


def compute(work: Work) -> list[Record]:
    """Compute runs of one table; several at once have equal shares of the time."""
    torch.set_num_threads(1)
    task = _load(work.folder, work.table)
    if work.name in (TREES, TREES_POOLED):
        return [_fit_trees(task, work, *each) for each in work.scenarios]
    return _train(task, work)


def _train(task: Task, work: Work) -> list[Record]:
    began, device = time.perf_counter(), torch.device(work.device)
    config = default_run(task, work.name)
    configs = [
        replace(config, rate=rate, seed=seed, train=replace(config.train, random_state=seed))
        for rate, seed in work.scenarios
    ]
    with isolated(task, device):
        stack = StackedRuns(task, configs, device, as_stored=False)
        stack.train()
        tested = test(stack)
        y = stack.rows("validation").y.cpu().view(len(configs), -1)
        incomplete = stack.incomplete("validation").movedim(2, 0)
        rows = ScoredRows(y, incomplete, torch.zeros_like(y, dtype=torch.bool), tuple(task.layouts))
        validated = metrics_of(
            validation_ways(rows, lambda *to_predict: predict(stack, stack.method, *to_predict))
        )
    seconds = (time.perf_counter() - began) / len(configs)
    return [
        _record(task, work, each.rate, each.seed, {**first, **second}, seconds, work.device)
        for each, first, second in zip(configs, tested, validated, strict=True)
    ]


def _fit_trees(task: Task, work: Work, rate: float, seed: int) -> Record:
    job = TreeJob(task.name, len(task.layouts), 0, 0, TreeRun(work.name, rate, seed))
    fitted = fit_run(task, job)
    metrics = score_run(fitted).metrics
    ways = validation_ways(
        fitted.scored_rows("validation"),
        lambda *to_predict: fitted.predict(None, *to_predict),
        fitted.modes,
    )
    metrics = {**metrics, **metrics_of(ways)[0]}
    return _record(task, work, rate, seed, metrics, fitted.seconds, "cpu")


def validation_ways(
    rows: ScoredRows, predict: Predict, modes: Sequence[Mode] = MODES
) -> dict[str, Pairs]:
    """Select the predictions of validation rows that would count if they were test rows."""
    ways = ways_of(rows, modes, lambda _, mode, parties: predict("validation", mode, parties))
    return {mode + VALIDATION: ways[mode] for mode in modes}


def _record(
    task: Task,
    work: Work,
    rate: float,
    seed: int,
    metrics: Mapping[str, Mapping[str, float]],
    seconds: float,
    device: str,
) -> Record:
    assert task.test is not None
    ways = {way: each for way, each in metrics.items() if way.startswith(MODES)}
    return {
        "table": work.table,
        "name": work.name,
        "rate": rate,
        "seed": seed,
        "data": task.digest(),
        "rows": {"train": int((~task.test).sum()), "test": int(task.test.sum())},
        "auroc": {
            way: round(each["auroc"], 6) for way, each in ways.items() if not way.endswith(MIXED)
        },
        "seconds": round(seconds, 2),
        "hardware": hardware(device),
        "version": VERSION,
    }


@cache
def _load(folder: Path, table: str) -> Task:
    return load_from(folder, table, PARTIES)


def missing_work(
    folder: Path,
    done: Sequence[Record],
    names: Sequence[str],
    device: str,
    tables: Sequence[str] = (),
    rates: Sequence[float] = RATES,
    seeds: int = SEEDS,
) -> list[Work]:
    """List the runs that are not done on the tables of a folder, largest tables first.

    On a GPU the runs of a method on a table are computed at once.
    """
    ending = f"-{PARTIES}.npz"
    files = sorted(folder.glob(f"*{ending}"), key=lambda file: -file.stat().st_size)
    finished = {(run_of(each), each["data"]) for each in done}
    todo = []
    for table in (file.name.removesuffix(ending) for file in files):
        if tables and table not in tables:
            continue
        digest = _load(folder, table).digest()
        for name in names:
            scenarios = tuple(
                (rate, seed)
                for seed in range(seeds)
                for rate in rates
                if ((table, name, rate, seed), digest) not in finished
            )
            at_once = [scenarios] if device == "cuda" else [(each,) for each in scenarios]
            todo += [Work(folder, table, name, each, device) for each in at_once if each]
    return todo


def run_of(record: Record) -> tuple[str, str, float, int]:
    """Identify a run: table, name, rate and seed."""
    return record["table"], record["name"], record["rate"], record["seed"]


def compute_all(todo: Sequence[Work], out: Path, workers: int, seconds: float = math.inf) -> bool:
    """Compute runs in several processes and append the results; return whether all are done.

    After `seconds`, stop the processes: runs in progress are lost.
    """
    began, failed, left = time.monotonic(), 0, len(todo)
    for work, done in _in_processes(todo, workers, seconds):
        left -= 1
        if isinstance(done, BaseException):
            failed += 1
            text = f"failed: {type(done).__name__}: {done}"
        else:
            append_lines(out, done)
            text = ", ".join(
                f"{mode} {100 * sum(each['auroc'][mode] for each in done) / len(done):.2f}"
                for mode in sorted(MODES)
                if mode in done[0]["auroc"]
            )
        print(f"{time.monotonic() - began:6.0f} s, {left} left, {work}: {text}", flush=True)
    if left:
        print(f"stopped after {seconds:.0f} s, {left} left", flush=True)
    return not left and not failed


def _in_processes(
    todo: Sequence[Work], workers: int, seconds: float
) -> Iterator[tuple[Work, list[Record] | BaseException]]:
    if not todo:
        return
    ends, others = time.monotonic() + seconds, set(active_children())
    pool = ProcessPoolExecutor(min(workers, len(todo)), get_context("spawn"))
    try:
        yield from _finished({pool.submit(compute, each): each for each in todo}, ends)
    finally:
        _stop(pool)
        for process in set(active_children()) - others:
            process.terminate()


def _finished(
    futures: Mapping[Future[list[Record]], Work], ends: float
) -> Iterator[tuple[Work, list[Record] | BaseException]]:
    waiting = set(futures)
    while waiting and time.monotonic() < ends:
        timeout = None if math.isinf(ends) else ends - time.monotonic()
        done, waiting = wait(waiting, timeout, FIRST_COMPLETED)
        for future in done:
            yield futures[future], future.exception() or future.result()


def _stop(pool: Executor) -> None:
    pool.shutdown(wait=False, cancel_futures=True)


def prepare(arguments: Sequence[str], folder: Path, all_rows: Sequence[str] = ()) -> None:
    """Write each table as a file of arrays; those in `all_rows` also with all of their rows."""
    from xvfl_lab.datasets.csv_tables import read_csv_table

    for argument in arguments:
        table = read_csv_table(argument)
        tables = [table]
        if table.name in all_rows:
            tables.append(read_csv_table(argument, 0, 0, table.name + ALL_ROWS))
        for each in tables:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DataWarning)
                task = each.split(PARTIES)
            path = folder / f"{task.name}-{PARTIES}.npz"
            save_task(task, path)
            size, columns = path.stat().st_size / 2**20, each.frame.shape[1]
            print(f"{path}: {len(task)} rows, {columns} columns, {size:.2f} MiB", flush=True)


def read_runs(path: Path) -> list[Record]:
    """Read the finished runs; of equal runs, the last one counts."""
    return list({run_of(each): each for each in read_jsonl(path) if "auroc" in each}.values())


def main() -> None:
    """Run the steps of the comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("step", choices=("run", "prepare", "train", "trees", "summary"))
    parser.add_argument("files", nargs="*", help="of `run` and `prepare`: FILE:LABEL:COLUMNS")
    parser.add_argument("--tasks", type=Path, default=Path("tasks"), help="prepared tables")
    parser.add_argument("--out", type=Path, default=Path("runs.jsonl"), help="finished runs")
    parser.add_argument("--tables", default="", help="names, separated by commas; default: all")
    parser.add_argument("--all-rows", default="", help="tables that are also run with all rows")
    parser.add_argument("--methods", default=OURS, help="of `train`, separated by commas")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--workers", type=int, default=1, help="number of processes")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--rates", default="", help="R_miss, separated by commas")
    parser.add_argument("--seconds", type=float, default=math.inf, help="limit of a step")
    options = parser.parse_args()
    if options.step in ("run", "prepare"):
        prepare(options.files, options.tasks, options.all_rows.split(","))
    names = {"train": options.methods.split(","), "trees": [TREES, TREES_POOLED]}
    rates = tuple(float(each) for each in options.rates.split(",") if each) or RATES
    tables = [each for each in options.tables.split(",") if each]
    complete = True
    for step in names:
        if options.step in ("run", step):
            device = options.device if step == "train" else "cpu"
            done = read_runs(options.out)
            todo = missing_work(
                options.tasks, done, names[step], device, tables, rates, options.seeds
            )
            complete &= compute_all(todo, options.out, options.workers, options.seconds)
    if options.step in ("run", "summary"):
        print("\n".join(summary(read_runs(options.out), options.methods.split(",")[0])))
    if not complete:
        sys.exit(1)


if __name__ == "__main__":
    main()
