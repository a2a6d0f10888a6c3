"""Plot of `party-worth`: shares of the parties by both ways, one panel for each data set."""

from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from numpy.typing import NDArray

COLORS = {"explained": "#0072B2", "retrained": "#E69F00"}
LABELS = {"explained": "subsets of one model", "retrained": "retrained subsets"}


def plot(figures: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> Figure:
    """Draw the Shapley values of every seed, and their mean."""
    figure, axes = plt.subplots(
        1, len(figures), figsize=(4.0 * len(figures), 3.4), layout="constrained", squeeze=False
    )
    for axis, (dataset, of) in zip(axes[0], figures.items(), strict=True):
        for shift, kind in ((-0.14, "explained"), (0.14, "retrained")):
            values = np.array(of[kind])
            places = np.arange(values.shape[1]) + shift
            for seed in values:
                axis.plot(places, seed, "o", color=COLORS[kind], alpha=0.35, markersize=4)
            label = LABELS[kind]
            axis.plot(places, values.mean(0), "_", color=COLORS[kind], markersize=18, label=label)
        axis.axhline(0, color="#999999", linewidth=0.8, linestyle=":")
        axis.set(title=dataset, ylabel=f"Shapley value in {of['metric']}")
        axis.set_xticks(range(len(of["parties"])), of["parties"], rotation=20)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25, axis="y")
    axes[0][0].legend(frameon=False, fontsize=8)
    return figure
