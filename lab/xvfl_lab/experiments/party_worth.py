"""Worth of parties: predictions with subsets of the parties against models trained on each subset.

For every seed one model of all parties predicts the test rows with each subset; other models are
trained on each subset alone. Both give Shapley values of the parties. Further models have an
additional party of pure noise: single nets as above, of more seeds, and models with the default
settings of `XVFLClassifier`. Nothing is missing but what the data sets miss themselves.
Shapes: N rows, R seeds, k parties, m subsets, S bootstrap samples.
"""

import itertools
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from xvfl import XVFLClassifier
from xvfl.config import LossConfig, TrainConfig
from xvfl.model.explain.bootstrap import METRICS, Estimate, sample_rows
from xvfl.model.explain.coalitions import coalitions, shapley_weights
from xvfl.model.explain.explain_model import ExplainOptions
from xvfl.primitives.layout import Feature, Layout
from xvfl.training.predict import logits
from xvfl_lab.datasets.digits import quarters
from xvfl_lab.experiments.compare import Difference
from xvfl_lab.experiments.dispatch import Load
from xvfl_lab.experiments.figure_cache import FigureData, Progress, cached_figure, cached_part
from xvfl_lab.experiments.figure_tables import markdown_table
from xvfl_lab.experiments.stacked_runs import RunConfig, StackedRuns, isolated
from xvfl_lab.files import write_text
from xvfl_lab.task import Task

NAME = "party-worth"
DATASETS, PARTIES = ("bank", "physionet2012", "digits"), 4
ROWS = {"train": 2000, "test": 3000}
"""Largest number of rows of a part; more are sampled."""
SEEDS, EPOCHS = (0, 1, 2), 20
NOISE_SEEDS, DEFAULT_SEEDS = tuple(range(9)), tuple(range(5))
"""Seeds of the single nets with a party of noise, and of the models with the default settings."""
SAMPLES = 300
NOISE = "noise"
Floats = NDArray[np.float64]
Tables = dict[str, pd.DataFrame]


def make(
    out: Path, quick: bool, device: torch.device, load: Load, progress: Progress
) -> dict[str, Any]:
    """Compute both Shapley values on every data set, and write the table."""
    seeds, epochs = ((0, 1), 8) if quick else (SEEDS, EPOCHS)
    noise_seeds, default_seeds = (seeds, (0,)) if quick else (NOISE_SEEDS, DEFAULT_SEEDS)
    names = ("digits",) if quick else DATASETS
    config = {
        "runs": [list(names), PARTIES, list(seeds), epochs],
        "noise_seeds": [list(noise_seeds), list(default_seeds)],
        "intervals": "joint",
        "rows": ROWS,
        "samples": SAMPLES,
        "timed": "worth of the parties, all rows",
    }

    def compute() -> FigureData:
        figures = {}
        for dataset in names:
            task = quarters() if dataset == "digits" else load(dataset, PARTIES)
            figures[dataset] = measured(
                out, task, seeds, noise_seeds, default_seeds, epochs, device, progress
            )
        return FigureData(figures, {})

    record = cached_figure(out, NAME, config, device, compute)
    write_text(out / f"{NAME}.md", "\n".join(tables(record["figures"])) + "\n")
    return record


def reduced(task: Task) -> Task:
    """Sample at most `ROWS` of the training and of the fixed test rows."""
    rng = np.random.default_rng(0)
    test = np.zeros(len(task), dtype=bool) if task.test is None else task.test
    parts = [
        rng.permutation(np.flatnonzero(part))[: ROWS[name]]
        for name, part in (("train", ~test), ("test", test))
    ]
    return task.take(np.sort(np.concatenate(parts)))


def measured(
    out: Path,
    task: Task,
    seeds: Sequence[int],
    noise_seeds: Sequence[int],
    default_seeds: Sequence[int],
    epochs: int,
    device: torch.device,
    progress: Progress,
) -> dict[str, Any]:
    """Measure one data set; finished models are read from disk."""
    whole, task = task, reduced(task)
    parties, metric = list(task.layouts), "auroc" if task.classes == 2 else "accuracy"
    subsets = coalitions(len(parties), np.random.default_rng(0)).subsets

    def part(name: str, names: Sequence[str], all_subsets: bool) -> dict[str, Any]:
        progress(f"{task.name}: {name}")
        noisy = NOISE in names
        of_seeds = noise_seeds if noisy else seeds

        def compute() -> FigureData:
            chosen = with_noise(task) if noisy else restricted(task, names)
            return FigureData(
                trained_values(chosen, of_seeds, epochs, metric, all_subsets, device), {}
            )

        about: dict[str, Any] = {"figure": NAME, "task": task.name, "rows": ROWS}
        about |= {
            "parties": list(names),
            "all": all_subsets,
            "seeds": list(of_seeds),
            "epochs": epochs,
            "intervals": "joint",
        }
        return cached_part(out, about, device, compute).figures

    explained = part("all parties", parties, all_subsets=True)
    noise = part("with a party of noise", [*parties, NOISE], all_subsets=True)
    progress(f"{task.name}: default settings, with a party of noise")
    about = {"figure": NAME, "task": task.name, "rows": ROWS, "default": list(default_seeds)}
    default = cached_part(
        out, about, device, lambda: FigureData({"noise": default_noise(task, default_seeds)}, {})
    )
    retrained = []
    for subset in subsets[1:-1]:
        names = [parties[i] for i in subset]
        retrained.append(part("+".join(names), names, all_subsets=False)["values"])
    progress(f"{task.name}: cost")
    about = {"figure": NAME, "task": task.name, "rows": "all", "timed": "worth of the parties"}
    seconds = cached_part(out, about, device, lambda: FigureData(timed(whole), {})).figures
    first, last = (np.array(explained["values"])[..., at] for at in (0, -1))
    by_subset = np.stack([first, *(np.array(each)[:, -1] for each in retrained), last], 1)
    return {
        "metric": metric,
        "parties": parties,
        "rows": explained["rows"],
        "explained": (np.array(explained["values"]) @ shapley_weights(subsets).T).tolist(),
        "retrained": (by_subset @ shapley_weights(subsets).T).tolist(),
        "intervals": explained["intervals"],
        "noise": [of_seed[-1] for of_seed in noise["intervals"]],
        "default_noise": default.figures["noise"],
        "seconds": seconds,
    }


def restricted(task: Task, names: Sequence[str]) -> Task:
    """Keep some of the parties."""
    return replace(task, layouts={name: task.layouts[name] for name in names})


def with_noise(task: Task, seed: int = 7) -> Task:
    """Add a party of four columns of uniform noise."""
    layout = Layout(tuple(Feature(f"noise {i}", "numeric", 1) for i in range(4)))
    noise = np.random.default_rng(seed).random((len(task), 4)).astype(np.float32)
    layouts, values = {**task.layouts, NOISE: layout}, {**task.values, NOISE: noise}
    return replace(task, layouts=layouts, values=values)


def trained_values(
    task: Task,
    seeds: Sequence[int],
    epochs: int,
    metric: str,
    all_subsets: bool,
    device: torch.device,
) -> dict[str, Any]:
    """Train one model for each seed; score the test rows with all subsets, or with all parties.

    Returns `values` (R, m), the empty subset first and all parties last, and for all subsets the
    `intervals` of the Shapley values (R, k), which hold jointly for the parties of a model.
    """
    with isolated(task, device):
        stack = StackedRuns(task, [run_config(task, seed, epochs) for seed in seeds], device)
        stack.train()
        k = len(task.layouts)
        subsets = coalitions(k, np.random.default_rng(0)).subsets
        chosen = subsets if all_subsets else [subsets[0], subsets[-1]]
        scored = [subset_scores(stack, subset, metric) for subset in chosen]
    samples = np.stack(scored, 2)
    intervals: list[list[dict[str, float]]] = []
    if all_subsets:
        shapley = samples @ shapley_weights(subsets).T
        intervals = [[asdict(each) for each in Estimate.joint(of_run)] for of_run in shapley]
    rows = {"train": len(stack.places("train")[0]), "test": len(stack.places("whole")[0])}
    return {"values": samples[:, 0].tolist(), "intervals": intervals, "rows": rows}


def run_config(task: Task, seed: int, epochs: int) -> RunConfig:
    """Configure a run of `xvfl+`; a party alone has no other party to complete from."""
    train = TrainConfig(
        epochs=epochs, batch_size=128, optimizer="adamw", learning_rate=4e-3, random_state=seed
    )
    loss = LossConfig(cross_completion=len(task.layouts) > 1)
    return RunConfig("xvfl+", 0.0, seed, loss=loss, train=train)


def subset_scores(stack: StackedRuns, subset: tuple[int, ...], metric: str) -> Floats:
    """Score the test rows of every run with a subset, on bootstrap samples. (R, S + 1)"""
    rows = stack.rows("whole")
    y = rows.y.cpu().view(rows.runs, -1).numpy()
    train = stack.rows("train").y.view(rows.runs, -1).cpu()
    prior = torch.stack([torch.bincount(of, minlength=stack.task.classes) for of in train])
    prior = (prior / prior.sum(1, keepdim=True)).double().unsqueeze(1)
    proba = prior.expand(-1, y.shape[1], -1)
    if subset:
        method = stack.method.select_parties(subset)
        chosen = rows.select_parties(subset)
        federation = stack.federation.select_parties(subset)
        out = logits(method, federation, chosen, "collaborative", 0).double()
        seen = chosen.seen.any(1).cpu().view(rows.runs, -1, 1)
        proba = torch.where(seen, out.softmax(-1).view(*y.shape, -1), proba)
    counts = sample_rows(y.shape[1], SAMPLES, np.random.default_rng(0))
    score = METRICS["classification"][metric]
    return np.stack([score(*each, counts) for each in zip(proba.numpy(), y, strict=True)])


def timed(task: Task) -> dict[str, float]:
    """Measure the CPU seconds of a default fit on all training rows, and of the parties' worth.

    The worth is computed on the test rows, with subsets of the parties; the importance of features
    and what completion changed are left out.
    """
    (train, y_train), (test, y_test) = split_tables(task)
    model = XVFLClassifier(device="cpu", verbose=False)
    started = time.process_time()
    model.fit(train, y_train)
    trained = time.process_time()
    model.explain(test, y_test, n_repeats=0, completion=False)
    explained = time.process_time() - trained
    return {
        "training": round(trained - started, 2),
        "explanation": round(explained, 3),
        "training_rows": len(y_train),
        "explained_rows": min(len(y_test), ExplainOptions.max_rows),
    }


def default_noise(task: Task, seeds: Sequence[int]) -> list[dict[str, float]]:
    """Return the Shapley values of a party of noise in models with the default settings."""
    values = []
    for seed in seeds:
        train, test = split_tables(with_noise(task, seed))
        model = XVFLClassifier(device="cpu", verbose=False, random_state=seed).fit(*train)
        explanation = model.explain(*test, n_repeats=0, completion=False)
        values.append(asdict(explanation.worth[-1].shapley))
    return values


def split_tables(task: Task) -> list[tuple[Tables, pd.Series]]:
    """Return tables and labels, of the training and of the test rows."""
    test = np.arange(len(task)) % 3 == 0 if task.test is None else task.test
    ids = np.array([f"r{row}" for row in range(len(task))])
    frames = {
        name: pd.DataFrame(task.raw_values(name), index=ids, columns=_columns(layout))
        for name, layout in task.layouts.items()
    }
    y = pd.Series(task.y, index=ids)
    return [
        ({name: frame[part] for name, frame in frames.items()}, y[part]) for part in (~test, test)
    ]


def _columns(layout: Layout) -> list[str]:
    return [feature.name for feature in layout.features]


def summary(figures: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Compare both Shapley values of every data set: order, shares, noise and cost."""
    result = {}
    for dataset, of in figures.items():
        explained, retrained = (np.array(of[name]) for name in ("explained", "retrained"))
        decided = agreed = 0
        for a, b in itertools.combinations(range(len(of["parties"])), 2):
            difference = Difference.of(retrained[:, a] - retrained[:, b])
            if abs(difference.mean) > 2 * difference.error:
                decided += 1
                agreed += difference.mean * (explained[:, a] - explained[:, b]).mean() > 0
        shares = [each.mean(0) / each.mean(0).sum() for each in (explained, retrained)]
        result[dataset] = {
            "shares": [each.tolist() for each in shares],
            "share_error": float(np.abs(shares[0] - shares[1]).mean()),
            "decided": decided,
            "agreed": int(agreed),
            "noise": _noise_text(of["noise"]),
            "default_noise": _noise_text(of["default_noise"]),
            "cost": of["seconds"]["explanation"] / of["seconds"]["training"],
        }
    return result


def _noise_text(estimates: Sequence[dict[str, float]]) -> str:
    """Describe the Shapley values of a party of noise."""
    mean = float(np.mean([each["value"] for each in estimates]))
    inside = sum(each["low"] <= 0 <= each["high"] for each in estimates)
    return (
        f"its Shapley value is {mean:.4f} on average, and the interval contains 0 in {inside} of "
        f"{len(estimates)} models"
    )


def tables(figures: dict[str, Any]) -> list[str]:
    """Lay out the worth of every party, and the comparison."""
    compared, lines = summary(figures), []
    for dataset, of in figures.items():
        each, seeds = compared[dataset], len(of["explained"])
        lines += [
            f"## {dataset}",
            "",
            f"{of['metric']}, {of['rows']['train']:,} training and {of['rows']['test']:,} test "
            f"rows, {seeds} seeds; Shapley value ± standard error, and share of the sum:",
            "",
        ]
        rows = []
        for party, name in enumerate(of["parties"]):
            cells = []
            for at, kind in enumerate(("explained", "retrained")):
                value = Difference.of(np.array(of[kind])[:, party])
                share = 100 * each["shares"][at][party]
                cells.append(f"{value.mean:.3f} ± {value.error:.3f} ({share:.0f} %)")
            rows.append([name, *cells])
        lines += markdown_table(["party", "subsets of one model", "retrained subsets"], rows)
        seconds = of["seconds"]
        lines += [
            "",
            f"Order: the same in {each['agreed']} of {each['decided']} pairs of parties whose "
            "retrained values differ by two standard errors. Mean error of the shares: "
            f"{each['share_error']:.3f}. Cost: "
            f"{seconds['explanation']:.2f} CPU s for {seconds['explained_rows']:,} rows after "
            f"{seconds['training']:.0f} CPU s of training with the default settings on "
            f"{seconds['training_rows']:,} rows ({100 * each['cost']:.1f} %).",
            "",
            "A party of noise, with 95 % intervals that hold jointly for all parties: in models "
            f"with the default settings, {each['default_noise']}. In single nets as in the table, "
            f"{each['noise']}.",
            "",
        ]
    return lines
