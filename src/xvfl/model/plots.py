"""Pictures of a run: training curves, and the modes side by side."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from xvfl.errors import RunError
from xvfl.model.evaluation import Evaluation

COLOURS = {
    "local": "#d95f02",
    "assisted": "#7570b3",
    "peers": "#aaaaaa",
    "collaborative": "#1b9e77",
}


def curves(records: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw loss terms and validation log-loss over the epochs."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    epochs = [record["epoch"] for record in records]
    known = {"kind", "epoch", "step", "best_epoch", "score", "seconds"}
    for name in [key for key in records[0] if key not in known]:
        left.plot(epochs, [_number(record.get(name)) for record in records], label=name)
    left.set(xlabel="epoch", ylabel="training loss", yscale="log")
    left.legend(frameon=False)
    right.plot(epochs, [-_number(record["score"]) for record in records], color="#1b9e77")
    best = records[-1]["best_epoch"]
    right.axvline(best, color="#888888", linestyle=":", label=f"best: {best}")
    right.set(xlabel="epoch", ylabel="validation log-loss")
    right.legend(frameon=False)
    save_figure(figure, path)


def modes(evaluation: Evaluation, path: Path) -> None:
    """Draw balanced accuracy and AUROC of every way to predict."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained", sharey=True)
    lines = evaluation.lines[::-1]
    names = [f"{line.mode} · {line.party}" for line in lines]
    for axis, metric in zip(axes, ("balanced_accuracy", "auroc"), strict=True):
        values = [line.metrics[metric] for line in lines]
        axis.barh(names, values, color=[COLOURS[line.mode] for line in lines])
        for at, value in enumerate(values):
            axis.text(value, at, f" {value:.3f}", va="center", fontsize=8)
        axis.set(xlabel=metric.replace("_", " "), xlim=(0, 1.12))
        axis.spines[["top", "right"]].set_visible(False)
    save_figure(figure, path)


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def save_figure(figure: Figure, path: Path) -> None:
    """Write a picture and let go of it."""
    try:
        figure.savefig(path, dpi=130)
    except OSError as error:
        raise RunError(f"{path}: could not be written ({error.strerror})") from error
    finally:
        plt.close(figure)
