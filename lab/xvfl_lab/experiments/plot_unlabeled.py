"""Plot of `unlabeled`: the gain of every seed, by mode, one panel for each data set."""

from typing import Any

from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from numpy.typing import NDArray

from xvfl_lab.experiments.unlabeled import MODES, SETTINGS, summary


def plot(figures: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> Figure:
    """Draw the difference of each pair of runs, and the mean."""
    table = summary(figures)
    figure, axes = plt.subplots(
        1, len(figures), figsize=(4.0 * len(figures), 3.6), layout="constrained", squeeze=False
    )
    for axis, (dataset, settings) in zip(axes[0], figures.items(), strict=True):
        without, with_all = (settings[name] for name in SETTINGS)
        for at, mode in enumerate(MODES):
            pairs = zip(without["runs"], with_all["runs"], strict=True)
            gains = [b[mode] - a[mode] for a, b in pairs]
            axis.plot([at] * len(gains), gains, "o", color="#0072B2", alpha=0.5)
            axis.plot([at], [table[f"{dataset} {mode}"]["gain"]], "_", color="black", markersize=24)
        rows = with_all["rows"]
        axis.axhline(0, color="#999999", linewidth=0.8, linestyle=":")
        axis.set(
            title=f"{dataset}: {rows['labeled']} labeled, {rows['unlabeled']} unlabeled",
            ylabel=f"gain in {with_all['metric']}, points",
            xticks=range(len(MODES)),
            xticklabels=MODES,
        )
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25, axis="y")
    return figure
