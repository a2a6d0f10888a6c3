"""Accuracy under differential privacy, and how much of the stated ε an attack finds.

Two parties, as the lab's other runs (overlap 0.4, R_miss 0.5, test rows non-aligned). `off`: all
nets are trained with gradients. `no gradients`: the heads alone are trained. ε = ∞: differential
privacy without its noise, that is narrow and normalized embeddings, and hidden missing features.
"""

from collections.abc import Mapping
from dataclasses import asdict
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import torch

from xvfl.config import EncoderConfig, LossConfig, PrivacyConfig, TrainConfig
from xvfl.federation.privacy_accounting import state_privacy
from xvfl.federation.upload.encoder_net import build_encoder
from xvfl_lab.experiments.dispatch import Load
from xvfl_lab.experiments.dp_attack import Neighbors, lower_bound, most_distant_rows, opposite_rows
from xvfl_lab.experiments.figure_cache import FigureData, Progress, cached_figure, cached_part
from xvfl_lab.experiments.runner import test
from xvfl_lab.experiments.stacked_runs import RunConfig, StackedRuns, isolated
from xvfl_lab.files import write_text
from xvfl_lab.task import Task

NAME = "dp"
DATASETS = ("bank", "physionet2012")
METHOD = "laser"
EPSILONS = (8.0, 4.0, 1.0)
RATE = 0.5
WAYS = ("collaborative", "local", "collaborative whole", "local whole")
"""Predictions of test rows with missing features, and of the same rows without."""
PARTY_ROWS = 2000
"""Rows of a data set among which the attack looks for the most different two."""


def settings() -> dict[str, tuple[PrivacyConfig, bool]]:
    """Return the protection of each column, and whether noise is added."""
    private = {each: PrivacyConfig("no_gradients", epsilon=each) for each in EPSILONS}
    return {
        "off": (PrivacyConfig("off"), False),
        "no gradients": (PrivacyConfig("no_gradients"), False),
        name_of(inf): (private[EPSILONS[0]], False),
        **{name_of(epsilon): (privacy, True) for epsilon, privacy in private.items()},
    }


def name_of(epsilon: float) -> str:
    """Name a column by its ε."""
    return "ε = ∞" if epsilon == inf else f"ε = {epsilon:g}"


def make(
    out: Path, quick: bool, device: torch.device, load: Load, progress: Progress
) -> dict[str, Any]:
    """Train with every ε on every data set, and attack the releases."""
    seeds, epochs, count = ((0,), 2, 4_000) if quick else ((0, 1, 2), 6, 40_000)
    config = {
        "settings": {name: [asdict(p), noise] for name, (p, noise) in settings().items()},
        "runs": [list(DATASETS), METHOD, RATE, list(seeds), epochs],
        "attack": [count, PARTY_ROWS],
    }

    def compute() -> FigureData:
        figures: dict[str, Any] = {"scores": {}, "attack": {}}
        for dataset in DATASETS:
            task = load(dataset, 2)
            runs = [run_config(seed, epochs) for seed in seeds]
            figures["scores"][dataset] = {
                name: [_score(out, task, run, name, device, progress) for run in runs]
                for name in settings()
            }
            figures["attack"][f"{dataset}, the two most different rows"] = _attack(
                _rows_of(task, device), count, progress, dataset
            )
        opposite = _attack(opposite_rows(), count, progress, "opposite embeddings")
        figures["attack"]["two opposite embeddings"] = opposite
        return FigureData(figures, {})

    record = cached_figure(out, NAME, config, device, compute)
    write_text(out / f"{NAME}.md", "\n".join(tables(record["figures"])) + "\n")
    return record


def run_config(seed: int, epochs: int) -> RunConfig:
    """Configure a run."""
    train = TrainConfig(epochs=epochs, optimizer="adamw", random_state=seed, patience=0)
    return RunConfig(METHOD, RATE, seed, loss=LossConfig(method=METHOD), train=train)


def _score(
    out: Path, task: Task, config: RunConfig, name: str, device: torch.device, progress: Progress
) -> dict[str, float]:
    """Train a run; return its AUROC in %. From disk if computed before."""
    privacy, noise = settings()[name]

    def compute() -> FigureData:
        progress(f"{task.name}, {name}, seed {config.seed}")
        with isolated(task, device):
            stack = StackedRuns(task, [config], device, privacy, noise)
            stack.train()
            metrics = test(stack)[0]
        return FigureData({way: 100 * metrics[way]["auroc"] for way in WAYS}, {})

    about = {
        "figure": NAME,
        "task": task.name,
        "run": asdict(config),
        "privacy": asdict(privacy),
        "noise": noise,
    }
    return cached_part(out, about, device, compute).figures


def _rows_of(task: Task, device: torch.device) -> Neighbors:
    privacy, _ = settings()[name_of(EPSILONS[0])]
    stack = StackedRuns(task, [run_config(0, 1)], device, privacy)
    name, table = next(iter(stack.tables.items()))
    config = EncoderConfig(epsilon=privacy.epsilon)
    net = build_encoder(name, table.layout, config, stack.seeds).to(device)
    return most_distant_rows(net, table.take(torch.arange(PARTY_ROWS, device=device)))


def _attack(
    neighbors: Neighbors, count: int, progress: Progress, name: str
) -> dict[str, dict[str, float]]:
    """Attack the releases of every ε; the same ones without their noise for comparison."""
    found = {}
    for epsilon in EPSILONS:
        progress(f"attack on {name}, {name_of(epsilon)}")
        statement = state_privacy(PrivacyConfig("no_gradients", epsilon=epsilon))
        assert statement is not None
        found[name_of(epsilon)] = {
            "stated": epsilon,
            "found": lower_bound(neighbors, statement, count, secret=int(epsilon)),
            "found without noise": lower_bound(neighbors, statement.without_noise(), count, 0),
        }
    return found


def tables(figures: Mapping[str, Any]) -> list[str]:
    """Lay out the results in Markdown."""
    columns = list(settings())
    lines = ["AUROC in %, mean ± standard deviation over seeds; 50 is a random guess:", ""]
    lines += ["| data | prediction | " + " | ".join(columns) + " |"]
    lines += ["|---|---|" + "--:|" * len(columns)]
    for dataset, scores in figures["scores"].items():
        for way in WAYS:
            cells = [spread(scores[name], way) for name in columns]
            lines.append(f"| {dataset} | {way} | " + " | ".join(cells) + " |")
    lines += [
        "",
        "The largest ε that an attack on releases of one row finds with 95 % confidence:",
        "",
    ]
    lines += ["| row | stated ε | found ε | found without the noise |", "|---|--:|--:|--:|"]
    for row, results in figures["attack"].items():
        for each in results.values():
            found = f"{each['found']:.2f} | {each['found without noise']:.1f}"
            lines.append(f"| {row} | {each['stated']:g} | {found} |")
    return lines


def spread(runs: list[dict[str, float]], way: str) -> str:
    """Write mean and standard deviation over seeds."""
    values = np.array([run[way] for run in runs])
    deviation = f" ± {values.std(ddof=1):.1f}" if len(values) > 1 else ""
    return f"{values.mean():.1f}{deviation}"
