"""Plot of `upload`: accuracy against one process or gradients, and against recovered columns."""

from collections.abc import Mapping
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
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
    """Draw a column for each data set: differences above, recovery below where it was measured."""
    sets = {name: arms for name, arms in figures["runs"].items() if UPLOAD in arms}
    recovery = {
        name: arms
        for name, arms in figures["recovery"].items()
        if name in sets and any("numbers" in of for of in arms.values())
    }
    rows = 2 if recovery else 1
    figure, axes = plt.subplots(
        rows, len(sets), figsize=(3.6 * len(sets), 3.6 * rows), layout="constrained", squeeze=False
    )
    for column, (name, arms) in enumerate(sets.items()):
        _draw_differences(axes[0][column], name, arms)
        if name in recovery:
            _draw_recovery(axes[1][column], name, arms, recovery[name])
        elif recovery:
            axes[1][column].set_axis_off()
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
    axis.legend(frameon=False, fontsize=8)
    _tidy(axis)


def _draw_recovery(axis: Axes, name: str, runs: Mapping[str, Any], arms: Mapping[str, Any]) -> None:
    """Draw each arm as a point for each attack on numbers."""
    for attack, (color, marker) in ATTACKS.items():
        points = {
            arm: (sum(excess) / len(excess), _score(runs[arm]))
            for arm, of in arms.items()
            if arm in runs and (excess := _excess(of, attack))
        }
        xs, ys = [x for x, _ in points.values()], [y for _, y in points.values()]
        axis.plot(xs, ys, marker, color=color, label=attack)
        for arm, at in points.items():
            label = arm.removeprefix(f"{UPLOAD}, ")
            axis.annotate(label, at, (0, 5), textcoords="offset points", fontsize=6)
    axis.set(
        xlabel="mean |ρ| of recovered numbers above chance",
        ylabel=f"{metric_of(name)} of collaborative, %",
    )
    axis.legend(frameon=False, fontsize=8)
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
