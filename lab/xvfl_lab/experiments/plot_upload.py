"""Plot of `upload`: accuracy against one process or gradients, and what attacks recover."""

from collections.abc import Mapping
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from numpy.typing import NDArray

from xvfl_lab.experiments.compare import Difference
from xvfl_lab.experiments.upload_runs import (
    GRADIENTS,
    MODES,
    OLD,
    ONE_PROCESS,
    SETS,
    UPLOAD,
    metric_of,
)

COLORS = {UPLOAD: "#0072B2", OLD: "#D55E00"}
ATTACKS = {"ICA": ("#D55E00", "o"), "decoder, 50 rows": ("#0072B2", "^")}
"""An attack without known rows, and one with; color and marker."""


def plot(figures: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> Figure:
    """Draw the differences of each data set; below, recovery where it was measured."""
    sets = {name: arms for name, arms in figures["runs"].items() if UPLOAD in arms}
    recovery = {
        name: figures["recovery"][name]
        for name in sets
        if any("numbers" in of for of in figures["recovery"].get(name, {}).values())
    }
    columns = min(4, len(sets))
    rows = -(-len(sets) // columns)
    heights = [3.2 * rows, *(4.0 for _ in recovery)]
    figure = plt.figure(figsize=(3.4 * columns, sum(heights)), layout="constrained")
    parts = figure.subfigures(len(heights), 1, squeeze=False, height_ratios=heights)
    upper, *lower = parts.flat
    axes = upper.subplots(rows, columns, squeeze=False).flat
    for axis, (name, arms) in zip(axes, sets.items(), strict=False):
        _draw_differences(axis, name, arms)
    handles, labels = upper.axes[0].get_legend_handles_labels()
    upper.legend(handles, labels, frameon=False, loc="outside upper left", ncols=2)
    for axis in [*axes][len(sets) :]:
        axis.set_axis_off()
    for part, (name, arms) in zip(lower, recovery.items(), strict=True):
        _draw_recovery(part, name, sets[name], arms)
    return figure


def _draw_differences(axis: Axes, name: str, arms: Mapping[str, Any]) -> None:
    """Draw paired differences by mode, with their 95 % intervals."""
    rival = GRADIENTS if SETS[name].image else ONE_PROCESS
    for shift, (arm, color) in zip((-0.1, 0.1), COLORS.items(), strict=True):
        modes = arms.get(arm, {"modes": {}})["modes"]
        gaps = {
            place: Difference(**modes[mode]["minus"][rival])
            for place, mode in enumerate(MODES)
            if mode in modes and rival in modes[mode]["minus"]
        }
        axis.errorbar(
            [place + shift for place in gaps],
            [gap.mean for gap in gaps.values()],
            [gap.half_width for gap in gaps.values()],
            fmt="o",
            color=color,
            capsize=3,
            label=arm,
        )
    axis.axhline(0, color="#999999", linewidth=0.8, linestyle=":")
    axis.set(
        title=name,
        ylabel=f"{metric_of(name)} minus that of {rival}",
        xticks=range(len(MODES)),
        xticklabels=MODES,
    )
    _tidy(axis)


def _draw_recovery(
    figure: SubFigure, name: str, runs: Mapping[str, Any], arms: Mapping[str, Any]
) -> None:
    """Draw a line for each arm: its accuracy, and what each attack recovers of numbers."""
    scores = {arm: _score(runs[arm]) for arm, of in arms.items() if arm in runs and "numbers" in of}
    ordered = sorted(scores, key=scores.__getitem__)
    places = range(len(ordered))
    left, right = figure.subplots(1, 2, sharey=True)
    left.plot([scores[arm] for arm in ordered], places, "D", color="#444444")
    for attack, (color, marker) in ATTACKS.items():
        found = {
            place: sum(excess) / len(excess)
            for place, arm in enumerate(ordered)
            if (excess := _excess(arms[arm], attack))
        }
        right.plot([*found.values()], [*found], marker, color=color, label=attack)
    left.set(
        xlabel=f"{metric_of(name)} of collaborative, %",
        yticks=places,
        yticklabels=[arm.removeprefix(f"{UPLOAD}, ") for arm in ordered],
        title=name,
    )
    right.set(xlabel="mean |ρ| of recovered numbers above chance")
    right.legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    for axis in (left, right):
        _tidy(axis)


def _tidy(axis: Axes) -> None:
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25)


def _excess(of: Mapping[str, Any], attack: str) -> list[float]:
    found: list[float] = of.get("numbers", {}).get(attack, {}).get("excess", [])
    return found


def _score(of: Mapping[str, Any]) -> float:
    """Return the score at R_miss 0, where uploads are attacked; else at the lowest rate."""
    means: dict[str, float] = of["modes"]["collaborative"]["means"]
    return means[min(means, key=float)]
