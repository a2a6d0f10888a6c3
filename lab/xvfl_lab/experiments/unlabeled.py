"""Few labels: what `xvfl+` gains from rows without a label.

Every run has a fixed number of labels, of which the validation fraction chooses the best epoch; it
trains with the labeled rows alone, or with all training rows. Both have the same rows, masks,
initial weights and epochs. Settings were chosen by development rows: those of the validation part
that are not among the labels. Torch and numpy alone, but for the digits.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from xvfl.config import TrainConfig
from xvfl.dataset.splits import label_weights
from xvfl.methods.base import Mode
from xvfl.primitives.metrics import all_metrics
from xvfl.primitives.rows import Rows
from xvfl.training.predict import logits
from xvfl_lab.datasets.digits import digits
from xvfl_lab.experiments.compare import Difference
from xvfl_lab.experiments.dispatch import Load
from xvfl_lab.experiments.figure_cache import FigureData, Progress, cached_figure, cached_part
from xvfl_lab.experiments.figure_tables import markdown_table
from xvfl_lab.experiments.figures import SEVERAL_MEMBERS
from xvfl_lab.experiments.runner import test
from xvfl_lab.experiments.stacked_runs import Part, RunConfig, StackedRuns, isolated
from xvfl_lab.files import write_text
from xvfl_lab.task import Task

NAME = "unlabeled"
LABELS = {"bank": 500, "physionet2012": 500, "cifar10": 1000, "digits": 200}
"""Number of labels, by data set."""
TABLES = ("bank", "physionet2012")
MODES = ("local", "assisted", "collaborative")
SETTINGS = {"labeled rows": False, "all rows": True}
"""By name: whether unlabeled rows are used."""
RATE = 0.5
EPOCHS = 60
IMAGE_TRAINING = TrainConfig(epochs=EPOCHS, optimizer="adamw", learning_rate=5e-4, precision="bf16")


def make(
    out: Path, quick: bool, device: torch.device, load: Load, progress: Progress
) -> dict[str, Any]:
    """Train with and without unlabeled rows on every data set; images on a GPU only."""
    seeds: Sequence[int] = (0,) if quick else (0, 1, 2, 3, 4)
    names = ("digits",) if quick else (*TABLES, *(("cifar10",) if device.type == "cuda" else ()))
    epochs = 30 if quick else EPOCHS
    configs = {name: [run_config(name, seed, epochs) for seed in seeds] for name in names}
    config = {
        "labels": LABELS,
        "runs": {name: [asdict(each) for each in runs] for name, runs in configs.items()},
    }

    def compute() -> FigureData:
        figures: dict[str, Any] = {}
        for dataset, runs in configs.items():
            task = digits() if dataset == "digits" else load(dataset, 2)
            for setting, unlabeled in SETTINGS.items():
                progress(f"{dataset}, {setting}")
                # The nets of images fill a GPU: one run at a time.
                stacks = [[each] for each in runs] if dataset == "cifar10" else [runs]
                parts = [
                    measured(out, task, stack, LABELS[dataset], unlabeled, device)
                    for stack in stacks
                ]
                merged = [run for part in parts for run in part["runs"]]
                figures.setdefault(dataset, {})[setting] = {**parts[0], "runs": merged}
        return FigureData(figures, {})

    record = cached_figure(out, NAME, config, device, compute)
    write_text(out / f"{NAME}.md", "\n".join(tables(record["figures"])) + "\n")
    return record


def run_config(dataset: str, seed: int, epochs: int = EPOCHS) -> RunConfig:
    """Configure a run of `xvfl+` with the defaults of images, or of tables in one process."""
    if dataset == "cifar10":
        train = replace(IMAGE_TRAINING, epochs=epochs, random_state=seed)
        run = RunConfig("xvfl+", RATE, seed, train=train, weights="calibrated")
        return replace(run, loss=run.resolve(image=True, parties=2).loss)
    train = TrainConfig(epochs=epochs, optimizer="adamw", patience=0, random_state=seed)
    run = RunConfig("xvfl+", RATE, seed, net=SEVERAL_MEMBERS, train=train, weights="calibrated")
    options = run.resolve(image=False, parties=2)
    return replace(run, loss=options.loss, train=options.train)


def measured(
    out: Path,
    task: Task,
    configs: Sequence[RunConfig],
    labels: int,
    unlabeled: bool,
    device: torch.device,
) -> dict[str, Any]:
    """Train runs at once; score development and test rows. From disk if computed before."""

    def compute() -> FigureData:
        with isolated(task, device):
            stack = FewLabels(task, configs, labels, unlabeled, device)
            stack.train()
            metric = "auroc" if task.classes == 2 else "accuracy"
            development, scores = stack.development_scores(metric), test(stack)
        of_run = [
            {
                "seed": config.seed,
                **{mode: 100 * metrics[mode][metric] for mode in MODES},
                "development": {mode: 100 * each[run] for mode, each in development.items()},
            }
            for run, (config, metrics) in enumerate(zip(configs, scores, strict=True))
        ]
        rows = {"labeled": stack.labeled, "unlabeled": stack.n_unlabeled}
        return FigureData({"metric": metric, "rows": rows, "runs": of_run}, {})

    about = {
        "figure": NAME,
        "task": task.name,
        "labels": labels,
        "unlabeled": unlabeled,
        "runs": [asdict(each) for each in configs],
    }
    return cached_part(out, about, device, compute).figures


class FewLabels(StackedRuns):
    """Runs in which only some of the training and validation rows have a label."""

    def __init__(
        self,
        task: Task,
        configs: Sequence[RunConfig],
        labels: int,
        unlabeled: bool,
        device: torch.device,
    ) -> None:
        """Divide the labels by the validation fraction; others are unlabeled rows, or left out."""
        super().__init__(task, configs, device)
        self.validating = round(configs[0].train.validation_fraction * labels)
        self.labeled = labels - self.validating
        count = len(self.places("train")[0]) if unlabeled else self.labeled
        self.n_unlabeled = count - self.labeled

    def rows(self, part: Part) -> Rows:
        """Return the rows of a part, run after run."""
        if part == "train":
            return self._training_rows()
        if part == "validation":
            return self._take(part, slice(None, self.validating))
        return super().rows(part)

    def development_scores(self, metric: str) -> dict[str, list[float]]:
        """Score the rows that validation does not use, by mode and run; parties are averaged."""
        rows = self._take("validation", slice(self.validating, None))
        y = rows.y.cpu().view(rows.runs, -1).numpy()
        scores: dict[str, list[float]] = {}
        ways: list[tuple[Mode, Sequence[int]]] = [
            ("local", range(len(self.task.layouts))),
            ("collaborative", (0,)),
        ]
        for mode, parties in ways:
            by_party: list[Tensor] = []
            for party in parties:
                out = logits(self.method, self.federation, rows, mode, party)
                proba = torch.softmax(out.double(), -1).view(*y.shape, -1).numpy()
                of_run = [all_metrics(*each)[metric] for each in zip(proba, y, strict=True)]
                by_party.append(torch.tensor(of_run))
            scores[mode] = torch.stack(by_party).mean(0).tolist()
        return scores

    def _training_rows(self) -> Rows:
        rows = self._take("train", slice(None, self.labeled + self.n_unlabeled))
        y = rows.y.view(rows.runs, -1).clone()
        y[:, self.labeled :] = -1
        counts = torch.bincount(y[0, : self.labeled], minlength=self.task.classes).cpu().numpy()
        weights = torch.tensor(label_weights(counts, self.n_unlabeled, "none"), device=self.device)
        return replace(rows, y=y.flatten(), weight=weights[y.flatten()])

    def _take(self, part: Part, some: slice) -> Rows:
        places = torch.cat([each[some] for each in self.places(part)])
        return self.all_rows.take(places.to(self.device))


def summary(figures: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return means over seeds, and what unlabeled rows add, with the verdict."""
    table: dict[str, dict[str, Any]] = {}
    for dataset, settings in figures.items():
        without, with_all = (settings[name]["runs"] for name in SETTINGS)
        pairs = list(zip(without, with_all, strict=True))
        for mode in MODES:
            gain = Difference.of([b[mode] - a[mode] for a, b in pairs])
            table[f"{dataset} {mode}"] = {
                "without": Difference.of([a[mode] for a, _ in pairs]).mean,
                "with": Difference.of([b[mode] for _, b in pairs]).mean,
                "gain": gain.mean,
                "error": gain.error,
                "verdict": gain.verdict,
            }
    return table


def tables(figures: dict[str, Any]) -> list[str]:
    """Lay out the scores with and without unlabeled rows, and the gain."""
    lines = []
    for dataset, settings in figures.items():
        with_all = settings["all rows"]
        rows = with_all["rows"]
        table = summary({dataset: settings})
        lines += [
            f"**{dataset}**, {rows['labeled']} labeled and {rows['unlabeled']:,} unlabeled "
            f"training rows, {with_all['metric']} in %; gain in points, ± standard error:",
            "",
            *markdown_table(
                ["", *SETTINGS, "gain"],
                (
                    [
                        mode,
                        f"{each['without']:.1f}",
                        f"{each['with']:.1f}",
                        f"{each['gain']:+.2f} ± {each['error']:.2f}, {each['verdict']}",
                    ]
                    for mode in MODES
                    for each in [table[f"{dataset} {mode}"]]
                ),
            ),
        ]
    return lines
