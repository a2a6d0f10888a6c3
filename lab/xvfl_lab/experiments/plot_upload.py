"""Plot of `upload`: accuracy against recovered columns, one panel for each data set."""

from collections.abc import Mapping
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from numpy.typing import NDArray

from xvfl_lab.experiments.upload_runs import metric_of

ATTACKS = {"ICA": ("#D55E00", "o"), "decoder, 50 rows": ("#0072B2", "^")}
"""An attack without known rows, and one with; color and marker."""


def plot(figures: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> Figure:
    """Draw each arm as a point for each attack on numbers."""
    recovery = {
        name: arms
        for name, arms in figures["recovery"].items()
        if any("numbers" in of for of in arms.values()) and name in figures["runs"]
    }
    figure, axes = plt.subplots(
        1,
        max(len(recovery), 1),
        figsize=(4.8 * max(len(recovery), 1), 4.2),
        layout="constrained",
        squeeze=False,
    )
    for axis, (name, arms) in zip(axes[0], recovery.items(), strict=False):
        scores = {arm: _score(of) for arm, of in figures["runs"][name].items()}
        for attack, (color, marker) in ATTACKS.items():
            points = {
                arm: sum(excess) / len(excess)
                for arm, of in arms.items()
                if arm in scores and (excess := _excess(of, attack))
            }
            heights = [scores[arm] for arm in points]
            axis.plot(list(points.values()), heights, marker, color=color, label=attack)
            for arm, x in points.items():
                axis.annotate(arm, (x, scores[arm]), (0, 5), textcoords="offset points", fontsize=6)
        axis.set(
            title=name,
            xlabel="mean |ρ| of recovered numbers above chance",
            ylabel=f"{metric_of(name)} of collaborative, %",
        )
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
    if recovery:
        axes[0][0].legend(frameon=False, fontsize=9)
    return figure


def _excess(of: Mapping[str, Any], attack: str) -> list[float]:
    found: list[float] = of.get("numbers", {}).get(attack, {}).get("excess", [])
    return found


def _score(of: Mapping[str, Any]) -> float:
    means = of["modes"]["collaborative"]["means"].values()
    return float(sum(means) / len(means))
