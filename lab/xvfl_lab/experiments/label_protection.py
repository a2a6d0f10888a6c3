"""Label protection: what a party can infer about labels, and what the protection costs.

`xvfl+` with each setting on tables, as the lab's other runs (overlap 0.4, test rows non-aligned).
Leakage: a party collects the gradients that it receives for each training row, summed over views,
in the first epoch and over all epochs, and ranks the rows by their norm, by the cosine to one known
row of the class (either sign, mean over ten known rows) and by the best of the first three singular
vectors. The figure is the AUROC of the class against the rest, the mean over classes, for the party
that learns most. Torch and numpy alone, but for the digits.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from xvfl.config import PrivacyConfig, TrainConfig
from xvfl.federation.fused import FusedFederation
from xvfl.methods.base import View
from xvfl.primitives.metrics import auroc
from xvfl.primitives.rows import Rows
from xvfl_lab.datasets.digits import digits
from xvfl_lab.experiments.dispatch import Load
from xvfl_lab.experiments.figure_cache import FigureData, Progress, cached_figure, cached_part
from xvfl_lab.experiments.runner import test
from xvfl_lab.experiments.stacked_runs import RunConfig, StackedRuns, isolated
from xvfl_lab.files import write_text
from xvfl_lab.task import Task

NAME = "label-protection"
DATASETS = ("bank", "physionet2012", "digits")
RATES = (0.5, 0.9)
MODES = ("local", "assisted", "collaborative")
ATTACKS = ("norm", "direction", "spectral")
EPOCHS = 40
SETTINGS: dict[str, PrivacyConfig] = {
    "off": PrivacyConfig("off"),
    **{f"noise {std:g}": PrivacyConfig("noise", std) for std in (0.5, 1.0, 2.0)},
    "no_gradients": PrivacyConfig("no_gradients"),
}
N_ATTACKED_ROWS = 2000
"""Rows that are ranked, a random sample."""
N_KNOWN_ROWS = 10
N_SINGULAR_VECTORS = 3


def make(
    out: Path, quick: bool, device: torch.device, load: Load, progress: Progress
) -> dict[str, Any]:
    """Train with every setting on every data set; measure accuracy and leakage."""
    seeds, epochs = ((0,), 10) if quick else ((0, 1, 2, 3, 4), EPOCHS)
    names = ("digits",) if quick else DATASETS
    config = {
        "settings": {name: asdict(each) for name, each in SETTINGS.items()},
        "runs": [list(names), list(RATES), list(seeds), epochs],
    }

    def compute() -> FigureData:
        figures: dict[str, Any] = {}
        for dataset in names:
            task = digits() if dataset == "digits" else load(dataset, 2)
            for setting, privacy in SETTINGS.items():
                progress(f"{dataset}, {setting}")
                runs = [run_config(rate, seed, epochs) for rate in RATES for seed in seeds]
                part = measured(out, task, runs, privacy, device)
                figures.setdefault(dataset, {})[setting] = part
        return FigureData(figures, {})

    record = cached_figure(out, NAME, config, device, compute)
    write_text(out / f"{NAME}.md", "\n".join(tables(record["figures"])) + "\n")
    return record


def run_config(rate: float, seed: int, epochs: int) -> RunConfig:
    """Configure a run of `xvfl+`."""
    return RunConfig(
        "xvfl+", rate, seed, train=TrainConfig(epochs=epochs, optimizer="adamw", random_state=seed)
    )


def measured(
    out: Path,
    task: Task,
    configs: Sequence[RunConfig],
    privacy: PrivacyConfig,
    device: torch.device,
) -> dict[str, Any]:
    """Train runs at once; return score and leakage of each. From disk if computed before."""

    def compute() -> FigureData:
        with isolated(task, device):
            stack = StackedRuns(task, configs, device, privacy)
            probe = GradientProbe(stack)
            stack.train(on_epoch=probe.end_epoch)
            metric = "auroc" if task.classes == 2 else "accuracy"
            scores = test(stack)
        of_run = [
            {
                "rate": config.rate,
                "seed": config.seed,
                **{mode: 100 * metrics[mode][metric] for mode in MODES},
                "leakage": probe.leakage(run),
            }
            for run, (config, metrics) in enumerate(zip(configs, scores, strict=True))
        ]
        return FigureData({"metric": metric, "runs": of_run}, {})

    about = {
        "figure": NAME,
        "task": task.name,
        "privacy": asdict(privacy),
        "runs": [asdict(each) for each in configs],
    }
    return cached_part(out, about, device, compute).figures


class GradientProbe:
    """Adds up the gradients that each party receives for each row."""

    def __init__(self, stack: StackedRuns) -> None:
        """Observe the federation of a stack."""
        self.stack = stack
        self.total: Tensor | None = None
        """(N, k, d), all epochs so far."""
        self.first: Tensor | None = None
        """The same after the first epoch."""
        stack.federation = ProbedFederation(stack.federation, self)

    def observe(self, rows: Rows, embeddings: Tensor) -> None:
        """Collect the gradient of embeddings (B, k, v, d) in the backward pass."""
        if not embeddings.requires_grad:
            return
        if self.total is None:
            shape = (len(self.stack.all_rows), embeddings.shape[1], embeddings.shape[3])
            self.total = torch.zeros(shape, device=embeddings.device)
        total = self.total

        def add(gradient: Tensor) -> None:
            total.index_add_(0, rows.handles[:, 0], gradient.sum(2))

        embeddings.register_hook(add)  # type: ignore[no-untyped-call]

    def end_epoch(self) -> None:
        """Store the gradients of the first epoch."""
        if self.first is None and self.total is not None:
            self.first = self.total.clone()

    def leakage(self, run: int) -> dict[str, dict[str, float]]:
        """Rank a run's training rows by what each party received; the highest AUROC."""
        places = self.stack.places("train")[run]
        sample = torch.randperm(len(places), generator=torch.Generator().manual_seed(0))
        places = places[sample[:N_ATTACKED_ROWS]].to(self.stack.device)
        rows = self.stack.all_rows.take(places)
        y = rows.y.cpu().numpy()
        periods = {"first epoch": self.first, "all epochs": self.total}
        found: dict[str, dict[str, float]] = {}
        for period, gradients in periods.items():
            if gradients is None:  # nothing received: every row has the same rank
                found[period] = dict.fromkeys(ATTACKS, 0.5)
                continue
            by_party = []
            for party in range(gradients.shape[1]):
                seen = rows.seen[:, party].cpu().numpy()
                received = gradients[places, party].cpu().numpy()[seen]
                by_party.append(attack_labels(received, y[seen]))
            found[period] = {name: max(each[name] for each in by_party) for name in ATTACKS}
        return found


class ProbedFederation(FusedFederation):
    """A federation whose embeddings are observed in training."""

    def __init__(self, federation: FusedFederation, probe: GradientProbe) -> None:
        super().__init__(federation.workers)
        self._probe = probe

    def embed(self, rows: Rows, views: Sequence[View], needed: Tensor | None = None) -> Tensor:
        """Embed a batch and observe the gradient."""
        embeddings = super().embed(rows, views, needed)
        if self.workers[0].net.training:
            self._probe.observe(rows, embeddings)
        return embeddings


def attack_labels(gradients: NDArray[np.float32], y: NDArray[np.int64]) -> dict[str, float]:
    """Return the AUROC of each attack, the mean over classes against the rest."""
    rng = np.random.default_rng(0)
    norms = np.linalg.norm(gradients, axis=1)
    units = gradients / np.maximum(norms, 1e-12)[:, None]
    vectors = singular_vectors(gradients - gradients.mean(0))
    classes = [1] if y.max() == 1 else np.unique(y).tolist()
    found: dict[str, list[float]] = {name: [] for name in ATTACKS}
    for label in classes:
        positive = y == label
        known = rng.choice(np.flatnonzero(positive), N_KNOWN_ROWS)
        found["norm"].append(ranking_auroc(norms, positive))
        cosines = [ranking_auroc(units @ units[row], positive) for row in known]
        found["direction"].append(float(np.mean(cosines)))
        found["spectral"].append(max(ranking_auroc(vector, positive) for vector in vectors))
    return {name: float(np.mean(values)) for name, values in found.items()}


def singular_vectors(x: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the first left singular vectors, up to scale, by the small matrix xᵀx. (3, rows)"""
    wide = x.astype(np.float64)
    _, vectors = np.linalg.eigh(wide.T @ wide)
    projected: NDArray[np.float64] = (wide @ vectors[:, : -N_SINGULAR_VECTORS - 1 : -1]).T
    return projected


def ranking_auroc(score: NDArray[Any], positive: NDArray[np.bool_]) -> float:
    """Return the AUROC of a score with either sign."""
    value = auroc(np.stack([-score, score], 1), positive.astype(np.int64))
    return max(value, 1 - value)


def summary(figures: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return means over seeds and rates, the cost against `off`, and the highest leakage."""
    table: dict[str, dict[str, Any]] = {}
    for dataset, settings in figures.items():
        for setting, part in settings.items():
            off = settings["off"]["runs"]
            pairs = list(zip(part["runs"], off, strict=True))
            cost = {mode: [was[mode] - now[mode] for now, was in pairs] for mode in MODES}
            leaks = [run["leakage"]["all epochs"] for run in part["runs"]]
            table[f"{dataset} {setting}"] = {
                **{mode: float(np.mean([run[mode] for run, _ in pairs])) for mode in MODES},
                "cost": {mode: float(np.mean(each)) for mode, each in cost.items()},
                "error": {mode: _error(each) for mode, each in cost.items()},
                "leakage": {
                    name: float(np.mean([each[name] for each in leaks])) for name in ATTACKS
                },
            }
    return table


def tables(figures: dict[str, Any]) -> list[str]:
    """Lay out the results in Markdown."""
    columns = [*MODES, *ATTACKS]
    lines = [
        "Score in % (AUROC; for the digits accuracy), in brackets what the setting costs against "
        "`off` ± standard error, then the AUROC of each label attack over all epochs; 0.5 is a "
        "random guess:",
        "",
        "| data | setting | " + " | ".join(columns) + " |",
        "|---|---|" + "--:|" * len(columns),
    ]
    for dataset, settings in figures.items():
        for setting in settings:
            row = summary({dataset: settings})[f"{dataset} {setting}"]
            scores = [
                f"{row[mode]:.1f} ({row['cost'][mode]:.2f} ± {row['error'][mode]:.2f})"
                for mode in MODES
            ]
            leakage = [f"{row['leakage'][name]:.3f}" for name in ATTACKS]
            lines.append(f"| {dataset} | {setting} | " + " | ".join([*scores, *leakage]) + " |")
    return lines


def _error(values: Sequence[float]) -> float:
    """Return the standard error of a mean."""
    return float(np.std(values, ddof=1) / len(values) ** 0.5) if len(values) > 1 else 0.0
