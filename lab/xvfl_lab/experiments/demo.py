"""`xvfl demo`: a two-minute story on real data, two parties, three ways to predict.

The data are scanned handwritten digits (`digits`). One party holds the left half, the other the
right; 40 % of the training rows are whole at both, in the others one party misses features.
"""

import json
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from xvfl.config import LossConfig, TrainConfig
from xvfl.federation.completed_rows import completed
from xvfl.model.run_dir import RunDir
from xvfl.training.threads import limit_threads
from xvfl.version import VERSION
from xvfl_lab.datasets.digits import digits
from xvfl_lab.experiments import report
from xvfl_lab.experiments.compare import Way, difference, mean
from xvfl_lab.experiments.runner import ZERO_FILL, Result, run
from xvfl_lab.experiments.trial import Setting, Trial
from xvfl_lab.task import Task

METHODS = ("xvfl+", "xvfl", "laser+mask", "standalone")
OURS = "xvfl+"
SHOWN: dict[str, Way] = {
    "X-VFL, alone": (OURS, "local"),
    "same model, zero fill, alone": (OURS, "local" + ZERO_FILL),
    "paper's loss, alone": ("xvfl", "local"),
    "random-mask training, alone": ("laser+mask", "local"),
    "standalone model": ("standalone", "local"),
    "X-VFL, assisted": (OURS, "assisted"),
    "peers alone": (OURS, "peers"),
    "X-VFL, all together": (OURS, "collaborative"),
    "same model, zero fill, together": (OURS, "collaborative" + ZERO_FILL),
    "random-mask training, together": ("laser+mask", "collaborative"),
}
"""What the demo shows, by the name it shows it under."""
RIVALS = (
    ("X-VFL, alone", "paper's loss, alone"),
    ("X-VFL, alone", "same model, zero fill, alone"),
    ("X-VFL, alone", "random-mask training, alone"),
    ("X-VFL, alone", "standalone model"),
    ("X-VFL, all together", "random-mask training, together"),
)
TRAIN = TrainConfig(epochs=40, batch_size=128, learning_rate=5e-3, device="cpu")
PICTURES = 8


def settings(seeds: int, rates: Sequence[float], first: int = 0) -> list[Setting]:
    """List the runs, the longest first."""
    return [
        _setting(method, rate, seed)
        for method in METHODS
        for seed in range(first, first + seeds)
        for rate in rates
    ]


def run_demo(
    out: Path, seeds: int, first: int, rates: Sequence[float], workers: int, console: Console
) -> None:
    """Train, compare, and write report.html and metrics.json."""
    folder = RunDir(out).create()
    console.print(
        "Two parties, each with one half of scanned digits; 40 % of the training rows are whole at "
        "both,\nin the others one party misses some of its features. Test rows: one party always "
        "misses some."
    )
    results = _run_all(settings(seeds, rates, first), workers, console)
    rows = _rows(results, rates)
    console.print(_table(rows, rates, seeds))
    gaps = _gaps(results, rates) if seeds > 1 else []
    if gaps:
        console.print(_gap_table(gaps))
    shown = 0.5 if 0.5 in rates else max(rates)
    pictures = complete_some(digits(), shown)
    listed = ",".join(f"{rate:g}" for rate in rates)
    command = f"xvfl demo --seeds {seeds} --first-seed {first} --rates {listed}"
    metrics = {
        "version": VERSION,
        "command": command,
        "data": "digits (scikit-learn)",
        "accuracy": rows,
        "differences": gaps,
        "runs": [_plain(each) for each in results],
    }
    folder.write_text("metrics.json", json.dumps(metrics, indent=1) + "\n")
    plots = {
        "accuracy.png": report.png(report.accuracy_plot(rows, rates, seeds > 1)),
        "completed.png": report.png(report.completion_plot(pictures)),
    }
    for name, data in plots.items():
        folder.write_bytes(name, data)
    page = report.page(rows, gaps, rates, seeds, plots, shown, command)
    folder.write_text("report.html", page)
    console.print(f"wrote {out / 'report.html'} and {out / 'metrics.json'}")


def complete_some(task: Task, rate: float) -> dict[str, NDArray[np.float32]]:
    """Train once more and show some test digits: true, as seen, completed, (n, 8, 8) each."""
    with torch.random.fork_rng(devices=[]), limit_threads(task.layouts, torch.device("cpu")):
        trial = Trial(task, [_setting(OURS, rate, 0)])
        trial.train()
        rows = trial.rows("test").take(torch.arange(PICTURES))
        shown = trial.drawn[0].base[trial.drawn[0].where("test")][:PICTURES].numpy()
        made: dict[str, list[NDArray[np.float32]]] = {"true": [], "seen": [], "completed": []}
        for i, side in enumerate(trial.federation.sides):
            table = side.table.take(rows.handles[:, i])
            gaps = table.values.masked_fill(~table.observed, torch.nan).numpy()
            truth = task.values[side.name][shown]
            full = completed(trial.federation, rows, i).numpy()
            for name, half in zip(made, (truth, gaps, full), strict=True):
                made[name].append(half.reshape(-1, 8, 4))
    return {name: np.concatenate(halves, 2) for name, halves in made.items()}


def _run_all(todo: Sequence[Setting], workers: int, console: Console) -> list[Result]:
    count = min(workers or os.cpu_count() or 1, len(todo))
    console.print(f"{len(todo)} trainings on {count} processes …")
    results = []
    with (
        ProcessPoolExecutor(count, get_context("spawn")) as pool,
        Progress(console=console, transient=True) as bar,
    ):
        task = bar.add_task("training", total=len(todo))
        for done in as_completed([pool.submit(_run, each) for each in todo]):
            results.append(done.result())
            bar.advance(task)
    return sorted(results, key=lambda r: (r.setting.method, r.setting.seed, r.setting.rate))


def _run(setting: Setting) -> Result:
    return run(digits(), setting)


def _setting(method: str, rate: float, seed: int) -> Setting:
    loss = LossConfig(method=method)  # type: ignore[arg-type]
    return Setting(
        method, rate, seed, loss=loss, train=replace(TRAIN, random_state=seed), keep="last"
    )


def _rows(results: Sequence[Result], rates: Sequence[float]) -> dict[str, list[dict[str, float]]]:
    return {
        name: [asdict(mean(results, way, rate)) for rate in rates] for name, way in SHOWN.items()
    }


def _gaps(results: Sequence[Result], rates: Sequence[float]) -> list[dict[str, Any]]:
    found = []
    for rate in rates:
        for ours, rival in RIVALS:
            gap = difference(results, SHOWN[ours], SHOWN[rival], rate)
            found.append(
                {"rate": rate, "ours": ours, "rival": rival, **asdict(gap), "verdict": gap.verdict}
            )
    return found


def _table(rows: dict[str, list[dict[str, float]]], rates: Sequence[float], seeds: int) -> Table:
    spread = ", mean ± standard deviation" if seeds > 1 else ""
    table = Table(title=f"accuracy in % by missing rate ({seeds} seed{'s' * (seeds > 1)}{spread})")
    table.add_column("")
    for rate in rates:
        table.add_column(f"{rate:g}", justify="right")
    for name, cells in rows.items():
        text = [f"{100 * c['mean']:.1f}" for c in cells]
        if seeds > 1:
            text = [f"{t} ± {100 * c['deviation']:.1f}" for t, c in zip(text, cells, strict=True)]
        table.add_row(name, *text, end_section=name in ("standalone model", "peers alone"))
    return table


def _gap_table(gaps: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="paired differences in points, ± standard error over seeds")
    for name in ("missing rate", "ours", "against", "difference", "verdict (2 s.e.)"):
        table.add_column(name)
    for gap in gaps:
        figure = f"{100 * gap['mean']:+.1f} ± {100 * gap['error']:.1f}"
        table.add_row(f"{gap['rate']:g}", gap["ours"], gap["rival"], figure, gap["verdict"])
    return table


def _plain(result: Result) -> dict[str, Any]:
    setting = result.setting
    return {
        "method": setting.method,
        "rate": setting.rate,
        "seed": setting.seed,
        "seconds": round(result.seconds, 2),
        "majority": result.majority,
        "metrics": result.metrics,
    }
