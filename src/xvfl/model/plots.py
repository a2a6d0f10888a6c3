"""Plots of a run: training curves, and metrics by prediction mode on the same rows.

matplotlib is optional (`pip install 'xvfl[plots]'`); it is imported when a plot is drawn.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from xvfl.errors import RunError
from xvfl.model.evaluation import ALL, Evaluation
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

METRICS = {"balanced_accuracy": "balanced accuracy", "auroc": "AUROC"}
"""The metrics of the plot of an evaluation, and their labels."""


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
    """Plot balanced accuracy and AUROC of modes and trees, in groups with the same rows."""
    from matplotlib.figure import Figure

    groups = comparable_groups(evaluation, trees)
    bars = sum(len(group.bars) + 1.4 for group in groups)
    figure = Figure(figsize=(9, max(3.0, 0.3 * bars + 0.9)), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for axis, metric in zip(axes, METRICS, strict=True):
        place, ticks = 0.0, []
        for group in groups:
            axis.text(0.01, place, group.title, va="center", fontsize=9, fontweight="bold")
            for name, metrics, kind in group.bars:
                place -= 1
                value = metrics[metric]
                axis.barh(place, value, color=COLORS[kind])
                axis.text(value, place, f" {value:.3f}", va="center", fontsize=8)
                ticks.append((place, name))
            place -= 1.4
        axis.set_yticks([at for at, _ in ticks], [name for _, name in ticks])
        axis.set(xlabel=METRICS[metric], xlim=(0, 1.12), ylim=(place + 0.6, 0.7))
        axis.spines[["top", "right"]].set_visible(False)
    save_figure(figure, path)


@dataclass(frozen=True)
class BarGroup:
    """Bars that can be compared, because they have the same rows."""

    title: str
    bars: list[tuple[str, dict[str, float], str]]
    """Name, metrics and kind, which decides the color."""


def comparable_groups(evaluation: Evaluation, trees: Sequence[TreeLine] = ()) -> list[BarGroup]:
    """Group modes and trees by the rows that they predict: of each party, and all rows.

    `peers`, which predicts other rows than the party it assists, is left out.
    """
    groups = []
    for each in evaluation.same_rows:
        bars = [(mode, metrics, mode) for mode, metrics in each.metrics.items()]
        bars += [
            (f"trees {line.way}", line.metrics, "trees")
            for line in trees
            if line.party == each.party
        ]
        groups.append(BarGroup(f"{each.rows} rows of {each.party}", bars))
    together = [line for line in evaluation.lines if line.mode == "collaborative" and line.metrics]
    of_all = [line for line in trees if line.party == ALL]
    if together and (of_all or len(groups) != 1):
        bars = [(line.mode, line.metrics, line.mode) for line in together]
        bars += [(f"trees {line.way}", line.metrics, "trees") for line in of_all]
        groups.append(BarGroup(f"all {together[0].rows} rows", bars))
    return groups


def save_figure(figure: "Figure", path: Path) -> None:
    """Write a figure to a file."""
    try:
        figure.savefig(path, dpi=130)
    except OSError as error:
        raise RunError(f"{path}: could not be written ({error.strerror})") from error
