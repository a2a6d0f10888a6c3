"""Plots of the figures that are grids of runs."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import matplotlib

matplotlib.use("Agg")
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from xvfl_lab.experiments.figure_tables import (
    COMPARED,
    MODES,
    Axis,
    Standing,
    by_position,
    level,
    methods_of,
)
from xvfl_lab.experiments.runner import Result

COLORS = {
    "xvfl+": "#d95f02",
    "xvfl": "#e6ab02",
    "laser+mask": "#1f78b4",
    "laser": "#a6cee3",
    "fedcvt": "#7570b3",
    "iavfl": "#66a61e",
    "vanilla": "#999999",
    "standalone": "#444444",
    "trees": "#1b9e77",
    "trees pooled": "#a6761d",
}
MARKERS = dict(zip(COLORS, "os^vD<>xPX", strict=True))
TITLES = {
    "local": "local: a party alone",
    "assisted": "assisted by its peers",
    "peers": "peers alone",
    "collaborative": "collaborative: all together",
}


def lines(results: Sequence[Result], axis: Axis, metric: str, title: str) -> Figure:
    """Draw every mode over an axis of numbers, a line a method."""
    modes = [mode for mode in MODES if any(mode in each.metrics for each in results)]
    figure, axes = plt.subplots(
        1, len(modes), figsize=(4 * len(modes), 4), layout="constrained", sharey=True, squeeze=False
    )
    for at, mode in zip(axes[0], modes, strict=True):
        for method in methods_of(results):
            _line(at, results, axis, (method, mode), metric)
        at.set(title=TITLES[mode], xlabel=axis.label)
        tidy(at)
    axes[0][0].set_ylabel(f"{metric} in %")
    handles, names = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=8, frameon=False)
    figure.suptitle(title)
    return figure


def tidy(at: Axes, lines: Literal["both", "y"] = "both") -> None:
    """Draw a pale grid, and no box around the panel."""
    at.grid(axis=lines, alpha=0.25)
    at.spines[["top", "right"]].set_visible(False)


def _style(method: str, marker: str) -> dict[str, Any]:
    color = COLORS.get(method, "#555555")
    return {"label": method, "color": color, "marker": MARKERS.get(method, marker), "capsize": 2}


def _line(
    at: Axes, results: Sequence[Result], axis: Axis, way: tuple[str, str], metric: str
) -> None:
    by_place = {
        place: level(some, way, metric) for place, some in by_position(results, axis).items()
    }
    known = [(place, 100 * v.mean, 100 * v.deviation) for place, v in by_place.items() if v]
    if known:
        places, means, deviations = zip(*known, strict=True)
        width = 2.2 if way[0] == "xvfl+" else 1.2
        style = _style(way[0], ".")
        at.errorbar(places, means, deviations, **style, markersize=5, linewidth=width)


def points(results: Sequence[Result], axis: Axis, metric: str, title: str) -> Figure:
    """Draw every mode as points, a group a method (and position, if there are several)."""
    modes = [mode for mode in MODES if any(mode in each.metrics for each in results)]
    positions = by_position(results, axis)
    groups = [(place, method) for place, some in positions.items() for method in methods_of(some)]
    many = len(positions) > 1
    width = max(6, 0.75 * len(groups) + 2)
    figure, at = plt.subplots(figsize=(width, 4.2), layout="constrained")
    shades = dict(zip(MODES, ("#d95f02", "#7570b3", "#bbbbbb", "#1b9e77"), strict=True))
    for index, mode in enumerate(modes):
        levels = [level(positions[place], (method, mode), metric) for place, method in groups]
        heights = [100 * value.mean if value else np.nan for value in levels]
        errors = [100 * value.deviation if value else 0.0 for value in levels]
        where = np.arange(len(groups)) + (index - (len(modes) - 1) / 2) * 0.8 / len(modes)
        at.errorbar(
            where, heights, errors, fmt="o", markersize=7, capsize=2, label=mode, color=shades[mode]
        )
    names = [f"{method}\n{place}" if many else method for place, method in groups]
    at.set_xticks(np.arange(len(groups)), names, fontsize=8)
    if many:
        at.tick_params("x", rotation=30)
        for label in at.get_xticklabels():
            label.set_horizontalalignment("right")
    for edge in range(1, len(groups)):
        at.axvline(edge - 0.5, color="#dddddd", linewidth=0.8)
    at.set(ylabel=f"{metric} in %", title=title)
    tidy(at, "y")
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    return figure


def standings(by_dataset: Mapping[str, Sequence[Standing]]) -> Figure:
    """Draw the lead of `xvfl+` over each rival: a row a data set, a panel a mode."""
    size = (11, 1.6 + 0.45 * len(by_dataset))
    figure, axes = plt.subplots(
        1, len(COMPARED), figsize=size, layout="constrained", sharex=True, sharey=True
    )
    for at, mode in zip(axes, COMPARED, strict=True):
        at.axvline(0, color="black", linewidth=1)
        for row, each in enumerate(by_dataset.values()):
            _gaps(at, row, [one for one in each if one.mode == mode])
        at.set(title=TITLES[mode])
        at.set_xscale("symlog", linthresh=1)
        at.set_yticks(range(len(by_dataset)), list(by_dataset))
        at.xaxis.set_major_formatter("{x:g}")
        tidy(at)
    axes[0].invert_yaxis()
    named = [pair for at in axes for pair in zip(*at.get_legend_handles_labels(), strict=True)]
    handles = {name: handle for handle, name in named}
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=8, frameon=False)
    axes[1].set_xlabel("lead of xvfl+ in points, with 95 % confidence interval (Student's t)")
    return figure


def _gaps(at: Axes, row: int, standings: Sequence[Standing]) -> None:
    for place, each in enumerate(standings):
        at.errorbar(
            100 * each.gap.mean,
            row - 0.3 + 0.08 * place,
            xerr=100 * each.gap.half_width,
            markersize=6,
            **_style(each.rival, "P"),
        )
