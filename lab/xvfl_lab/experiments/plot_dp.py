"""Plot of `dp`: AUROC over ε, one panel for each data set, and the attack's ε over the stated ε."""

from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from numpy.typing import NDArray

from xvfl_lab.experiments.dp import EPSILONS, settings

STYLES = {
    "collaborative": ("#0072B2", "-"),
    "local": ("#D55E00", "-"),
    "collaborative whole": ("#0072B2", ":"),
    "local whole": ("#D55E00", ":"),
}


def plot(figures: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> Figure:
    """Draw the score of every setting, then the attacks."""
    columns, scores = list(settings()), figures["scores"]
    figure, axes = plt.subplots(
        1, len(scores) + 1, figsize=(4.8 * (len(scores) + 1), 4.2), layout="constrained"
    )
    for axis, (dataset, by_setting) in zip(axes, scores.items(), strict=False):
        for way, (color, line) in STYLES.items():
            runs = [[run[way] for run in by_setting[name]] for name in columns]
            means, places = np.mean(runs, 1), np.arange(len(columns))
            axis.errorbar(
                places,
                means,
                np.std(runs, 1),
                color=color,
                linestyle=line,
                marker="o",
                markersize=3,
                label=way,
            )
        axis.axhline(50, color="#999999", linewidth=0.8, linestyle=":")
        axis.set(title=dataset, ylabel="AUROC, %")
        axis.set_xticks(np.arange(len(columns)), columns, fontsize=8)
    attack = axes[-1]
    for row, results in figures["attack"].items():
        attack.plot(EPSILONS, [each["found"] for each in results.values()], "o-", label=row)
    without = [
        min(results[name]["found without noise"] for results in figures["attack"].values())
        for name in next(iter(figures["attack"].values()))
    ]
    attack.plot(EPSILONS, without, "kx", label="without the noise")
    attack.plot(EPSILONS, EPSILONS, color="#999999", linestyle=":", label="stated ε")
    attack.set(title="distinguishing attack", xlabel="stated ε", ylabel="lower bound on ε found")
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
        axis.legend(frameon=False, fontsize=7)
    return figure
