"""Plots of the figures that are grids of runs."""

from collections.abc import Mapping, Sequence

import matplotlib

matplotlib.use("Agg")
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from xvfl_lab.experiments.compare import mean
from xvfl_lab.experiments.figure_tables import (
    COMPARED,
    MODES,
    Axis,
    Standing,
    by_position,
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
}
MARKERS = dict(zip(COLORS, "os^vD<>x", strict=True))
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
        at.grid(alpha=0.25)
        at.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel(f"{metric} in %")
    handles, names = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=8, frameon=False)
    figure.suptitle(title)
    return figure


def _line(
    at: Axes, results: Sequence[Result], axis: Axis, way: tuple[str, str], metric: str
) -> None:
    places, means, deviations = [], [], []
    for place, some in by_position(results, axis).items():
        mine = [r for r in some if r.config.name == way[0] and way[1] in r.metrics]
        if mine:
            value = mean(mine, way, mine[0].config.rate, metric)
            places.append(place)
            means.append(100 * value.mean)
            deviations.append(100 * value.deviation)
    if places:
        color = COLORS.get(way[0], "#555555")
        at.errorbar(
            places,
            means,
            yerr=deviations,
            label=way[0],
            color=color,
            marker=MARKERS.get(way[0], "."),
            markersize=5,
            linewidth=2.2 if way[0] == "xvfl+" else 1.2,
            capsize=2,
        )


def points(results: Sequence[Result], axis: Axis, metric: str, title: str) -> Figure:
    """Draw every mode as points, a group a method (and position, if there are several)."""
    modes = [mode for mode in MODES if any(mode in each.metrics for each in results)]
    groups = [
        (place, method)
        for place, some in by_position(results, axis).items()
        for method in methods_of(some)
    ]
    many = len({place for place, _ in groups}) > 1
    width = max(6, 0.75 * len(groups) + 2)
    figure, at = plt.subplots(figsize=(width, 4.2), layout="constrained")
    shades = dict(zip(MODES, ("#d95f02", "#7570b3", "#bbbbbb", "#1b9e77"), strict=True))
    for index, mode in enumerate(modes):
        heights, errors = [], []
        for place, method in groups:
            some = by_position(results, axis)[place]
            mine = [r for r in some if r.config.name == method and mode in r.metrics]
            value = mean(mine, (method, mode), mine[0].config.rate, metric) if mine else None
            heights.append(100 * value.mean if value else np.nan)
            errors.append(100 * value.deviation if value else 0.0)
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
    at.grid(axis="y", alpha=0.25)
    at.set(ylabel=f"{metric} in %", title=title)
    at.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    return figure


def standings(by_dataset: Mapping[str, Sequence[Standing]]) -> Figure:
    """Draw the lead of `xvfl+` over each rival: a row a data set, a panel a mode."""
    figure, axes = plt.subplots(
        1,
        len(COMPARED),
        figsize=(11, 1.6 + 0.45 * len(by_dataset)),
        layout="constrained",
        sharex=True,
        sharey=True,
    )
    for at, mode in zip(axes, COMPARED, strict=True):
        at.axvline(0, color="black", linewidth=1)
        for row, each in enumerate(by_dataset.values()):
            _gaps(at, row, [one for one in each if one.mode == mode])
        at.set(title=TITLES[mode])
        at.set_xscale("symlog", linthresh=1)
        at.set_yticks(range(len(by_dataset)), list(by_dataset))
        at.xaxis.set_major_formatter("{x:g}")
        at.grid(alpha=0.25)
        at.spines[["top", "right"]].set_visible(False)
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
            label=each.rival,
            color=COLORS.get(each.rival, "#555555"),
            marker=MARKERS.get(each.rival, "P"),
            markersize=6,
            capsize=2,
        )
