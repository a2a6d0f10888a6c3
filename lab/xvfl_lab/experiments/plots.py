"""Plots of the figures that are grids of runs."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import matplotlib

matplotlib.use("Agg")
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from xvfl_lab.experiments.figure_tables import (
    COMPARED,
    MODES,
    Axis,
    Standing,
    by_position,
    level,
    methods_of,
    position_text,
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


SHADES = dict(zip(MODES, ("#d95f02", "#7570b3", "#bbbbbb", "#1b9e77"), strict=True))
"""Colors of the modes."""
Metrics = Mapping[str, str]
"""The metric of each data set."""


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
    for index, mode in enumerate(modes):
        levels = [level(positions[place], (method, mode), metric) for place, method in groups]
        heights = [100 * value.mean if value else np.nan for value in levels]
        errors = [100 * value.deviation if value else 0.0 for value in levels]
        where = np.arange(len(groups)) + (index - (len(modes) - 1) / 2) * 0.8 / len(modes)
        at.errorbar(
            where, heights, errors, fmt="o", markersize=7, capsize=2, label=mode, color=SHADES[mode]
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


def overview(
    by_dataset: Mapping[str, Sequence[Result]], axis: Axis, metrics: Metrics, dots: bool
) -> Figure:
    """Draw a figure on all its data sets: lines, or a dot for each method and mode."""
    return (_dot_panels if dots else _line_grid)(by_dataset, axis, metrics)


def _line_grid(by_dataset: Mapping[str, Sequence[Result]], axis: Axis, metrics: Metrics) -> Figure:
    """Draw `local` above `collaborative`, a column a data set."""
    modes, count = ("local", "collaborative"), len(by_dataset)
    figure, axes = plt.subplots(
        2, count, figsize=(max(6.5, 2.1 * count), 5), layout="constrained", squeeze=False
    )
    for column, (dataset, results) in enumerate(by_dataset.items()):
        for at, mode in zip(axes[:, column], modes, strict=True):
            # At R_miss 1 a party alone observes nothing.
            some = [each for each in results if mode != "local" or each.config.rate < 1]
            for method in methods_of(some):
                _line(at, some, axis, (method, mode), metrics[dataset])
            tidy(at)
        axes[0, column].set_title(f"{dataset}\n{metrics[dataset]}", fontsize=11)
        axes[1, column].set_xlabel(axis.label)
    for at, mode in zip(axes[:, 0], modes, strict=True):
        at.set_ylabel(f"{mode}, %")
    return _with_legend(figure, 5 if count < 4 else 10)


def _dot_panels(by_dataset: Mapping[str, Sequence[Result]], axis: Axis, metrics: Metrics) -> Figure:
    """Draw a panel a data set (and position): a row a method, a dot a mode."""
    panels = {}
    for dataset, results in by_dataset.items():
        positions = by_position(results, axis)
        for at, some in positions.items():
            where = f"\n{axis.label} {position_text(at)}" if len(positions) > 1 else ""
            panels[dataset + where] = (metrics[dataset], some)
    methods = list(dict.fromkeys(m for _, some in panels.values() for m in methods_of(some)))
    size = (max(6.5, 1.9 * len(panels) + 1.6), 0.3 * len(methods) + 1.7)
    figure, axes = plt.subplots(
        1, len(panels), figsize=size, layout="constrained", sharey=True, squeeze=False
    )
    for panel, (title, (metric, some)) in zip(axes[0], panels.items(), strict=True):
        for place, mode in enumerate(COMPARED, -1):
            heights = np.arange(len(methods)) + 0.15 * place
            levels = [level(some, (method, mode), metric) for method in methods]
            means = [100 * each.mean if each else np.nan for each in levels]
            spreads = [100 * each.deviation if each else 0.0 for each in levels]
            style = {"fmt": "o", "markersize": 5, "capsize": 2, "color": SHADES[mode]}
            panel.errorbar(means, heights, xerr=spreads, label=mode, **style)
        panel.set(xlabel=f"{metric} in %")
        panel.set_title(title, fontsize=10)
        panel.xaxis.set_major_locator(MaxNLocator(4))
        panel.set_yticks(range(len(methods)), methods)
        tidy(panel)
    axes[0][0].invert_yaxis()
    return _with_legend(figure, 3)


def _with_legend(figure: Figure, columns: int) -> Figure:
    """Put one legend of all panels below them."""
    named = [each.get_legend_handles_labels() for each in figure.axes]
    handles = {name: handle for pair in named for handle, name in zip(*pair, strict=True)}
    figure.legend(
        handles.values(), handles, loc="outside lower center", ncols=columns, frameon=False
    )
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
    axes[1].set_xlabel("lead of xvfl+ in points, with 95 % confidence interval (Student's t)")
    return _with_legend(figure, 8)


def _gaps(at: Axes, row: int, standings: Sequence[Standing]) -> None:
    for place, each in enumerate(standings):
        at.errorbar(
            100 * each.gap.mean,
            row - 0.3 + 0.08 * place,
            xerr=100 * each.gap.half_width,
            markersize=6,
            **_style(each.rival, "P"),
        )
