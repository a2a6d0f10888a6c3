"""`xvfl-lab digits`: methods and prediction modes on the data of `xvfl demo`, by the public API."""

import os
import time
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table

from xvfl import DataWarning, XVFLClassifier
from xvfl.cli.demo_data import PARTIES, Digits, digits_with_gaps
from xvfl.methods import Mode
from xvfl.model.report.charts import NO_MATPLOTLIB, has_matplotlib
from xvfl.model.run_dir import RunDir
from xvfl.primitives.metrics import all_metrics
from xvfl.version import VERSION
from xvfl_lab import digits_report

OVERLAP, TEST_FRACTION = 0.4, 0.3
N_PICTURES = 8
PARAMETERS: dict[str, Any] = {
    "epochs": 40,
    "batch_size": 128,
    "learning_rate": 5e-3,
    "device": "cpu",
    "verbose": False,
}
MODES: dict[str, tuple[Mode, ...]] = {
    "xvfl+": ("local", "assisted", "peers", "collaborative"),
    "xvfl": ("local", "assisted", "peers", "collaborative"),
    "laser+mask": ("local", "collaborative"),
    "standalone": ("local",),
}
"""Methods of the comparison and their prediction modes; the slowest method first."""
ROWS: dict[str, tuple[str, Mode]] = {
    "xvfl+, local": ("xvfl+", "local"),
    "X-VFL, local": ("xvfl", "local"),
    "random-mask training, local": ("laser+mask", "local"),
    "standalone, local": ("standalone", "local"),
    "xvfl+, assisted": ("xvfl+", "assisted"),
    "xvfl+, peers only": ("xvfl+", "peers"),
    "xvfl+, collaborative": ("xvfl+", "collaborative"),
    "X-VFL, collaborative": ("xvfl", "collaborative"),
    "random-mask training, collaborative": ("laser+mask", "collaborative"),
}
"""Rows of the result table: display name, method, mode."""
SECTION_ENDS = ("standalone, local", "xvfl+, peers only")
COMPARISONS = (
    ("xvfl+, local", "X-VFL, local"),
    ("xvfl+, local", "random-mask training, local"),
    ("xvfl+, local", "standalone, local"),
    ("xvfl+, collaborative", "X-VFL, collaborative"),
    ("xvfl+, collaborative", "random-mask training, collaborative"),
)


@dataclass(frozen=True)
class Job:
    """One training of the comparison."""

    method: str
    rate: float
    seed: int
    parameters: Mapping[str, Any]
    pictures: bool = False
    """Whether to complete some test digits for the report."""


@dataclass(frozen=True)
class Result:
    """Test metrics of one training, by mode.

    The metrics of `local`, `assisted` and `peers` are over the rows and parties with missing
    features.
    """

    method: str
    rate: float
    seed: int
    seconds: float
    metrics: dict[Mode, dict[str, float]]
    pictures: digits_report.Pictures = field(default_factory=dict)


def compare_digits(
    out: Path, seeds: int, first_seed: int, rates: Sequence[float], workers: int, console: Console
) -> None:
    """Train, compare, and write report.html, metrics.json and, with matplotlib, the plots."""
    folder = RunDir(out).create()
    console.print(
        "Two parties each hold one half of scanned digits. In 60 % of the training rows, and in "
        "every test row, one of them has missing features."
    )
    results = run_jobs(list_jobs(seeds, rates, first_seed), workers, console)
    accuracy = mean_accuracy(results, rates)
    console.print(_accuracy_table(accuracy, rates, seeds))
    differences = paired_differences(results, rates) if seeds > 1 else []
    if differences:
        console.print(_difference_table(differences))
    command = (
        f"xvfl-lab digits --seeds {seeds} --first-seed {first_seed} "
        f"--rates {','.join(f'{rate:g}' for rate in rates)}"
    )
    metrics = {
        "version": VERSION,
        "command": command,
        "data": "digits (scikit-learn)",
        "accuracy": accuracy,
        "differences": differences,
        "runs": [
            {name: value for name, value in vars(each).items() if name != "pictures"}
            for each in results
        ],
    }
    folder.write_json("metrics.json", metrics)
    pictures = next(each for each in results if each.pictures)
    if has_matplotlib():
        plots = digits_report.plots(accuracy, rates, seeds > 1, pictures.pictures)
    else:
        plots = {}
        console.print(NO_MATPLOTLIB, markup=False)
    for name, data in plots.items():
        folder.write_bytes(name, data)
    page = digits_report.page(accuracy, differences, rates, seeds, plots, pictures.rate, command)
    folder.write_text("report.html", page)
    console.print(f"wrote {out / 'report.html'} and {out / 'metrics.json'}")


def list_jobs(seeds: int, rates: Sequence[float], first_seed: int = 0) -> list[Job]:
    """List the trainings, the longest first."""
    shown = ("xvfl+", 0.5 if 0.5 in rates else max(rates), first_seed)
    return [
        Job(method, rate, seed, PARAMETERS, pictures=(method, rate, seed) == shown)
        for method, seed, rate in product(MODES, range(first_seed, first_seed + seeds), rates)
    ]


def run_jobs(jobs: Sequence[Job], workers: int, console: Console) -> list[Result]:
    """Run the trainings in worker processes."""
    count = min(workers or os.cpu_count() or 1, len(jobs))
    console.print(f"{len(jobs)} trainings in {count} processes …")
    with ProcessPoolExecutor(count, get_context("spawn")) as pool:
        runs = as_completed([pool.submit(run_job, each) for each in jobs])
        bar = track(runs, "training", len(jobs), console=console, transient=True)
        results = [done.result() for done in bar]
    return sorted(results, key=lambda each: (each.method, each.seed, each.rate))


def run_job(job: Job) -> Result:
    """Train one model and measure every mode on the test rows."""
    started = time.perf_counter()
    train, test = digits_with_gaps(job.rate, OVERLAP, TEST_FRACTION, job.seed)
    model = XVFLClassifier(method=job.method, random_state=job.seed, **job.parameters)
    with warnings.catch_warnings():
        # Pixels with the same value in all training rows are left out.
        warnings.simplefilter("ignore", DataWarning)
        model.fit(train.observed, train.y)
    metrics = {mode: evaluate(model, test, mode) for mode in MODES[job.method]}
    pictures = complete_some(model, test) if job.pictures else {}
    seconds = round(time.perf_counter() - started, 2)
    return Result(job.method, job.rate, job.seed, seconds, metrics, pictures)


def evaluate(model: XVFLClassifier, test: Digits, mode: Mode) -> dict[str, float]:
    """Measure one mode: collaborative over all rows, others where a party has missing features."""
    if mode == "collaborative":
        proba = model.predict_proba(test.observed, mode=mode)
    else:
        incomplete = {name: test.y.index[test.incomplete[name]].tolist() for name in PARTIES}
        proba = pd.concat(
            model.predict_proba(test.observed, mode=mode, party=name, ids=ids)
            for name, ids in incomplete.items()
        )
    y = test.y.loc[proba.index].to_numpy()
    return all_metrics(proba.to_numpy(), np.searchsorted(model.classes_, y))


def complete_some(model: XVFLClassifier, test: Digits) -> digits_report.Pictures:
    """Complete the first test rows: true, observed and completed images, (n, 8, 8) each."""
    rows = test.take(test.y.index[:N_PICTURES])
    # Pixels with a single value in all training rows are not part of the model.
    completed = {name: table.fillna(0) for name, table in model.complete(rows.observed).items()}
    tables = {"true": rows.complete, "observed": rows.observed, "completed": completed}
    return {
        kind: np.concatenate([halves[name].to_numpy().reshape(-1, 8, 4) for name in PARTIES], 2)
        / 16
        for kind, halves in tables.items()
    }


def mean_accuracy(
    results: Sequence[Result], rates: Sequence[float]
) -> dict[str, list[dict[str, float]]]:
    """Compute mean and standard deviation over seeds, one value per row of the table and rate."""
    table: dict[str, list[dict[str, float]]] = {name: [] for name in ROWS}
    for name, rate in product(ROWS, rates):
        values = _by_seed(results, name, rate)
        deviation = float(values.std(ddof=1)) if len(values) > 1 else 0.0
        table[name].append({"mean": float(values.mean()), "deviation": deviation})
    return table


def paired_differences(results: Sequence[Result], rates: Sequence[float]) -> list[dict[str, Any]]:
    """Compute mean differences over seeds and their standard errors."""
    differences = []
    for rate, (name, other) in product(rates, COMPARISONS):
        values = _by_seed(results, name, rate) - _by_seed(results, other, rate)
        mean, error = float(values.mean()), float(values.std(ddof=1) / len(values) ** 0.5)
        verdict = "ahead" if mean > 2 * error else "behind" if mean < -2 * error else "level"
        line = {"rate": rate, "method": name, "other": other}
        differences.append({**line, "mean": mean, "error": error, "verdict": verdict})
    return differences


def _by_seed(results: Sequence[Result], name: str, rate: float) -> NDArray[np.float64]:
    """List the accuracies of a row of the table; `results` are ordered by seed."""
    method, mode = ROWS[name]
    chosen = [each for each in results if (each.method, each.rate) == (method, rate)]
    return np.array([each.metrics[mode]["accuracy"] for each in chosen])


def _accuracy_table(accuracy: digits_report.Accuracy, rates: Sequence[float], seeds: int) -> Table:
    spread = ", mean ± standard deviation" if seeds > 1 else ""
    table = Table(title=f"accuracy in % by missing rate ({seeds} seed{'s' * (seeds > 1)}{spread})")
    table.add_column("")
    for rate in rates:
        table.add_column(f"{rate:g}", justify="right")
    for name, cells in accuracy.items():
        text = [digits_report.percent(cell, seeds) for cell in cells]
        table.add_row(name, *text, end_section=name in SECTION_ENDS)
    return table


def _difference_table(differences: Sequence[Mapping[str, Any]]) -> Table:
    columns = ("missing rate", "method", "compared with", "difference", "verdict (2 s.e.)")
    title = "paired differences in percentage points, ± standard error over seeds"
    table = Table(*columns, title=title)
    for line in differences:
        points = f"{100 * line['mean']:+.1f} ± {100 * line['error']:.1f}"
        table.add_row(f"{line['rate']:g}", line["method"], line["other"], points, line["verdict"])
    return table
