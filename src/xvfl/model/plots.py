"""Plots of a run: training curves, and metrics by prediction mode.

matplotlib is optional (`pip install 'xvfl[plots]'`); it is imported when a plot is drawn.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from xvfl.errors import RunError
from xvfl.model.evaluation import Evaluation
from xvfl.model.tree_comparison import TreeLine

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NO_MATPLOTLIB = "plots need matplotlib: pip install 'xvfl[plots]'"
COLORS = {
    "local": "#d95f02",
    "assisted": "#7570b3",
    "peers": "#aaaaaa",
    "collaborative": "#1b9e77",
    "trees": "#666666",
}


def has_matplotlib() -> bool:
    """Return whether matplotlib can be imported."""
    try:
        import matplotlib.figure  # noqa: F401
    except ModuleNotFoundError:
        return False
    return True


def plot_training(records: Sequence[dict[str, Any]], path: Path) -> None:
    """Plot loss terms and validation log-loss over the epochs."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    frame = pd.DataFrame(records).drop(columns="kind").astype(float)
    epochs = frame["epoch"]
    for name in frame.columns.drop(["epoch", "step", "best_epoch", "score", "seconds"]):
        left.plot(epochs, frame[name], label=name)
    left.set(xlabel="epoch", ylabel="training loss", yscale="log")
    left.legend(frameon=False)
    right.plot(epochs, -frame["score"], color="#1b9e77")
    best = records[-1]["best_epoch"]
    right.axvline(best, color="#888888", linestyle=":", label=f"best: {best}")
    right.set(xlabel="epoch", ylabel="validation log-loss")
    right.legend(frameon=False)
    save_figure(figure, path)


def plot_evaluation(evaluation: Evaluation, path: Path, trees: Sequence[TreeLine] = ()) -> None:
    """Plot balanced accuracy and AUROC of every prediction mode and party, and of trees."""
    from matplotlib.figure import Figure

    bars = [
        *((f"{line.mode} · {line.party}", line.metrics, line.mode) for line in evaluation.lines),
        *((f"trees {line.way} · {line.party}", line.metrics, "trees") for line in trees),
    ][::-1]
    figure = Figure(figsize=(9, max(3.4, 0.3 * len(bars) + 0.9)), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for axis, metric in zip(axes, ("balanced_accuracy", "auroc"), strict=True):
        values = [metrics[metric] for _, metrics, _ in bars]
        axis.barh([name for name, _, _ in bars], values, color=[COLORS[kind] for *_, kind in bars])
        for at, value in enumerate(values):
            axis.text(value, at, f" {value:.3f}", va="center", fontsize=8)
        axis.set(xlabel=metric.replace("_", " "), xlim=(0, 1.12))
        axis.spines[["top", "right"]].set_visible(False)
    save_figure(figure, path)


def save_figure(figure: "Figure", path: Path) -> None:
    """Write a figure to a file."""
    try:
        figure.savefig(path, dpi=130)
    except OSError as error:
        raise RunError(f"{path}: could not be written ({error.strerror})") from error
