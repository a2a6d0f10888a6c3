"""Plot of `boundary`: decision regions, with each party's own and the joint embeddings."""

from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from numpy.typing import NDArray

from xvfl_lab.experiments.figure_plot import arrays_of

ROWS = {"both parties together": 2, "left party alone": 0, "right party alone": 1}
"""Rows of the picture, and their index among the points."""
REGIONS = (
    *("#fde0c5", "#d3e5f3", "#d5ecd4", "#f7d4e3", "#e3dcf0"),
    *("#fff3b8", "#e2e2e2", "#f5c9b8", "#c9ece8", "#dfd3c3"),
)
"""Pale colors of the regions; they separate neighbors, the digits name the class."""


def plot(figures: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> Figure:
    """Lay out one column a weight λ: both parties, left alone, right alone."""
    weights = list(figures["weights"])
    figure, axes = plt.subplots(
        3, len(weights), figsize=(3.7 * len(weights), 10), layout="constrained"
    )
    for column, weight in enumerate(weights):
        shown = arrays_of(arrays, weight)
        for axis, (label, at) in zip(axes[:, column], ROWS.items(), strict=True):
            _panel(axis, shown, at)
            if column == 0:
                axis.set_ylabel(label, fontsize=11)
        name = "without DSAlign (λ = 0)" if weight == "0" else f"DSAlign, λ1 = λ2 = {weight}"
        axes[0, column].set_title(f"{name}\n{axes[0, column].get_title()}", fontsize=10)
        axes[-1, column].set_xlabel(_in_words(figures["weights"][weight]), fontsize=9)
    figure.suptitle(
        "Test digits in the plane of their two-number embeddings (one seed); × decided wrongly.\n"
        "Below: nets of the default width, mean ± standard deviation over seeds",
        fontsize=11,
    )
    return figure


def _in_words(numbers: dict[str, dict[str, float]]) -> str:
    def cell(name: str) -> str:
        return f"{100 * numbers[name]['mean']:.1f} ± {100 * numbers[name]['deviation']:.1f} %"

    return (
        f"correct alone {cell('accuracy own')}, together {cell('accuracy joint')}\n"
        f"alone decides as together {cell('agreement')}"
    )


def _panel(axis: Axes, shown: dict[str, NDArray[Any]], at: int) -> None:
    classes = len(REGIONS)
    norm = BoundaryNorm(np.arange(classes + 1) - 0.5, classes)
    axis.imshow(
        shown["regions"],
        origin="lower",
        extent=tuple(shown["extent"]),
        cmap=ListedColormap(REGIONS),
        norm=norm,
        aspect="auto",
        interpolation="nearest",
    )
    points, wrong = shown["points"][:, at], shown["decided"][:, at] != shown["y"]
    for (across, up), y in zip(points[~wrong], shown["y"][~wrong], strict=True):
        axis.text(across, up, str(y), fontsize=5, ha="center", va="center", color="#333333")
    axis.plot(*points[wrong].T, "x", color="#D55E00", markersize=4, markeredgewidth=0.9)
    axis.set(xticks=[], yticks=[])
    axis.set_title(f"{100 * (1 - wrong.mean()):.1f} % correct", fontsize=10)
