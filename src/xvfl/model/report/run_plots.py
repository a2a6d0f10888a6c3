"""Plots of a run: training curves, and metrics by prediction mode on the same rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from xvfl.model.evaluation import ALL, Evaluation
from xvfl.model.report.charts import new_figure, plain_axis, save_figure
from xvfl.model.tree_comparison import TreeLine

COLORS = {
    "local": "#d95f02",
    "assisted": "#7570b3",
    "peers": "#aaaaaa",
    "collaborative": "#1b9e77",
    "trees": "#666666",
}

METRICS = {
    "classification": {"balanced_accuracy": "balanced accuracy", "auroc": "AUROC"},
    "regression": {"r2": "R²", "rmse": "RMSE"},
}
"""The metrics of the plot of an evaluation, and their labels, by task."""


def plot_training(
    records: Sequence[dict[str, Any]], path: Path, score_name: str = "log-loss"
) -> None:
    """Plot loss terms and validation loss over the epochs."""
    figure = new_figure(9, 3.4)
    left, right = figure.subplots(1, 2)
    frame = pd.DataFrame(records).drop(columns=["kind", "modes"], errors="ignore").astype(float)
    epochs = frame["epoch"]
    for name in frame.columns.drop(["epoch", "step", "best_epoch", "score", "seconds"]):
        left.plot(epochs, frame[name], label=name)
    left.set(xlabel="epoch", ylabel="training loss", yscale="log")
    left.legend(frameon=False)
    right.plot(epochs, -frame["score"], color="#1b9e77")
    best = records[-1]["best_epoch"]
    right.axvline(best, color="#888888", linestyle=":", label=f"best: {best}")
    right.set(xlabel="epoch", ylabel=f"validation {score_name}")
    right.legend(frameon=False)
    save_figure(figure, path)


def plot_evaluation(evaluation: Evaluation, path: Path, trees: Sequence[TreeLine] = ()) -> None:
    """Plot two metrics of modes and trees, in groups with the same rows.

    In regression, also plot predictions and residuals of collaborative prediction.
    """
    groups = comparable_groups(evaluation, trees)
    metrics = METRICS[evaluation.task]
    bars = sum(len(group.bars) + 1.4 for group in groups)
    height, more = max(3.0, 0.3 * bars + 0.9), 3.8 if evaluation.pairs else 0.0
    whole = new_figure(9, height + more)
    heights = [height, more] if more else [height]
    parts = whole.subfigures(len(heights), height_ratios=heights, squeeze=False)
    figure, *rest = parts[:, 0]
    for each in rest:
        _plot_pairs(each, evaluation.pairs)
    axes = figure.subplots(1, 2, sharey=True)
    for axis, metric in zip(axes, metrics, strict=True):
        place, ticks = 0.0, []
        for group in groups:
            axis.text(0.01, place, group.title, va="center", fontsize=9, fontweight="bold")
            for name, figures, kind in group.bars:
                place -= 1
                value = figures[metric]
                axis.barh(place, value, color=COLORS[kind])
                axis.text(
                    max(value, 0.0),
                    place,
                    f" {value:.3f}" if metric != "rmse" else f" {value:.4g}",
                    va="center",
                    fontsize=8,
                )
                ticks.append((place, name))
            place -= 1.4
        axis.set_yticks([at for at, _ in ticks], [name for _, name in ticks])
        values = [of[metric] for group in groups for _, of, _ in group.bars]
        low, high = min(0.0, *values), max([1.0, *values] if metric != "rmse" else values)
        axis.set(xlabel=metrics[metric], xlim=(low, 1.12 * high), ylim=(place + 0.6, 0.7))
        plain_axis(axis)
    save_figure(whole, path)


def _plot_pairs(figure: Any, pairs: Sequence[tuple[float, float]]) -> None:
    """Plot predicted against true labels, and residuals against predictions."""
    left, right = figure.subplots(1, 2)
    labels, predicted = (list(each) for each in zip(*pairs, strict=True))
    residuals = [label - value for label, value in pairs]
    ends = [min(labels + predicted), max(labels + predicted)]
    style = {"s": 9, "alpha": 0.5, "linewidths": 0, "color": COLORS["collaborative"]}
    left.scatter(labels, predicted, **style)
    left.plot(ends, ends, color="#888888", linestyle=":")
    left.set(xlabel="label", ylabel="collaborative prediction")
    right.scatter(predicted, residuals, **style)
    right.axhline(0, color="#888888", linestyle=":")
    right.set(xlabel="collaborative prediction", ylabel="residual: label − prediction")
    for axis in (left, right):
        plain_axis(axis)


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
