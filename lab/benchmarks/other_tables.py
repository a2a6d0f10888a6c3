"""Compare `xvfl+` with `laser+mask` and trees on any CSV files, with features made missing.

    python lab/benchmarks/other_tables.py "MedExp.csv:med>median:" "HI.csv:hhi=yes:hhi2,whi"

An argument is FILE:LABEL:COLUMNS. LABEL is COLUMN=VALUE, or COLUMN>median; the column is no
feature. COLUMNS are left out, separated by commas. Two parties hold every second column each. At
most 3,000 rows train, of which 15 % validate; at most 6,000 others test. Text columns are
categories. The protocol is that of `xvfl-lab reproduce trees`. One line for each file: AUROC in
percent, mean of R_miss 0.5 and 0.9 and of the seeds.
"""

import argparse
import json
import warnings
from dataclasses import replace
from pathlib import Path
from statistics import mean

import numpy as np
import pandas as pd

from xvfl.config import TableOptions, TrainConfig
from xvfl_lab.datasets.table_sets import Table
from xvfl_lab.experiments.figures import TABLE_BUDGET, make_jobs
from xvfl_lab.experiments.runner import Result, run_many
from xvfl_lab.experiments.stacked_runs import RunConfig
from xvfl_lab.experiments.tree_runs import TREES, TREES_POOLED, TreeJob, TreeRun, run_trees
from xvfl_lab.task import Task

TRAIN_ROWS, TEST_ROWS = 3_000, 6_000
RATES = (0.5, 0.9)
METHODS = ("xvfl+", "laser+mask")


def read_table(argument: str) -> Table:
    """Read a file, shuffle its rows and split its columns over two parties."""
    if argument.count(":") < 2:
        raise SystemExit(f"{argument}: expected FILE:LABEL:COLUMNS, where COLUMNS may be empty")
    path, label, left_out = argument.rsplit(":", 2)
    frame = pd.read_csv(path, na_values=["?"], skipinitialspace=True)
    unnamed = [name for name in frame if str(name).startswith("Unnamed")]
    frame = frame.drop(columns=unnamed).sample(frac=1, random_state=7, ignore_index=True)
    above = label.endswith(">median")
    column, _, value = label.partition(">" if above else "=")
    unused = [column, *filter(None, left_out.split(","))]
    missing = [name for name in unused if name not in frame]
    if missing:
        raise SystemExit(
            f"{path}: has no column {missing[0]!r}; it has {', '.join(map(str, frame))}"
        )
    y = frame[column] > frame[column].median() if above else frame[column].astype(str) == value
    frame = frame.drop(columns=unused)
    frame = frame.rename(columns=lambda name: name.replace("__", "_"))
    train = min(TRAIN_ROWS, int(0.7 * len(frame)))
    frame, y = frame.iloc[: train + TEST_ROWS], y.iloc[: train + TEST_ROWS]
    names = [str(name) for name in frame]
    text = tuple(name for name in names if not pd.api.types.is_numeric_dtype(frame[name]))
    parties = {2: {"first": names[::2], "second": names[1::2]}}
    test = np.arange(len(frame)) >= train
    labels = y.to_numpy().astype(np.int64)
    options = TableOptions(categorical=text)
    return Table(Path(path).stem, frame, labels, test, parties, options)


def run(task: Task, seeds: int) -> dict[str, list[Result]]:
    """Train and test every method and the trees on the same rows and masks."""
    assert task.test is not None
    train_rows = int((~task.test).sum() * (1 - TrainConfig().validation_fraction))
    run = RunConfig("", 0.0, 0, net=TABLE_BUDGET.net)
    epochs = run.resolve(image=False, parties=2, rows=train_rows).train.epochs
    budget = replace(TABLE_BUDGET, epochs=epochs, seeds=seeds)
    results = {}
    for method in METHODS:
        jobs = make_jobs(task.name, budget, rates=RATES, methods=(method,))
        results[method] = run_many(task, [job.config for job in jobs])
    for name in (TREES, TREES_POOLED):
        runs = [TreeRun(name, rate, seed) for seed in range(seeds) for rate in RATES]
        results[name] = [run_trees(task, TreeJob(task.name, 2, 0, 0, each)) for each in runs]
    return results


def scores(results: dict[str, list[Result]]) -> dict[str, float]:
    """Average the AUROC of every method and mode."""
    return {
        f"{name} {mode}": round(100 * mean(each.metrics[mode]["auroc"] for each in runs), 2)
        for name, runs in results.items()
        for mode in ("local", "collaborative")
        if mode in runs[0].metrics
    }


def main() -> None:
    """Compare on each file; print the mean differences last."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", nargs="+", help="FILE:LABEL:COLUMNS")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write all numbers there")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    table = {}
    for argument in options.files:
        task = read_table(argument).split(2)
        table[task.name] = scores(run(task, options.seeds))
        print(task.name, json.dumps(table[task.name]), flush=True)
        if options.json is not None:
            options.json.write_text(json.dumps(table, indent=1) + "\n")
    for rival in (*METHODS[1:], TREES, TREES_POOLED):
        for mode in ("local", "collaborative"):
            ways = (f"xvfl+ {mode}", f"{rival} {mode}")
            gaps = [each[ways[0]] - each[ways[1]] for each in table.values() if ways[1] in each]
            if gaps:
                error = np.std(gaps, ddof=1) / len(gaps) ** 0.5 if len(gaps) > 1 else np.nan
                print(f"xvfl+ minus {rival}, {mode}: {mean(gaps):+.2f} ± {error:.2f}")


if __name__ == "__main__":
    main()
