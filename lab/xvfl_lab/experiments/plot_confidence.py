"""Plot of `confidence`: an example with its Grad-CAM maps, and the mean of all test images."""

from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from xvfl_lab.experiments.figure_plot import arrays_of

CASES = {"single": "right half alone", "single-xcom": "left half completed", "both": "both halves"}
COLORS = {"confidence": "#0072B2", "accuracy": "#E69F00"}
INK = {"confidence": "white", "accuracy": "black"}
STRENGTH = 0.55
"""Opacity of the map at its maximum."""


def plot(figures: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> Figure:
    """Lay out one row a method: the image, the three cases, and the mean of all test images."""
    methods = list(figures["methods"])
    size, widths = (13.5, 3.3 * len(methods)), [1, 1, 1, 1, 1.7]
    figure, axes = plt.subplots(
        len(methods), 5, figsize=size, layout="constrained", squeeze=False, width_ratios=widths
    )
    for row, method in zip(axes, methods, strict=True):
        method_figures = figures["methods"][method]
        shown = arrays_of(arrays, method)
        _example(row[:4], method, method_figures["example"], shown, figures["paper"])
        _all_images(row[4], method_figures["absent"]["left"], figures["paper"])
    return figure


def _example(
    axes: NDArray[Any],
    method: str,
    example: dict[str, Any],
    shown: dict[str, NDArray[Any]],
    paper: dict[str, float],
) -> None:
    image, completed = (shown[name].transpose(1, 2, 0) for name in ("image", "completed"))
    axes[0].imshow(image, interpolation="nearest")
    axes[0].set_title(f"test image {example['image']}: {example['class']}", fontsize=10)
    axes[0].set_ylabel(method, fontsize=12)
    behind = {"single": image, "single-xcom": completed, "both": image}
    for axis, (case, label) in zip(axes[1:], CASES.items(), strict=True):
        axis.imshow(_overlaid(behind[case], shown[f"{case}/cam"]), interpolation="nearest")
        figure = f"{example['confidence'][case]:.3f} (paper: {paper[case]:.3f})"
        axis.set_title(f"{label}\n{figure}", fontsize=10)
        axis.set_xlabel(f"decided: {example['decided'][case]}", fontsize=9)
    for axis in axes:
        axis.axvline(image.shape[1] / 2 - 0.5, color="white", linewidth=1)
        axis.set(xticks=[], yticks=[])


def _overlaid(image: NDArray[Any], cam: NDArray[Any]) -> NDArray[Any]:
    """Overlay a map on the gray image; an absent half is plain gray."""
    absent = np.isnan(cam)
    heat = np.nan_to_num(cam)
    gray = image.mean(2, keepdims=True).repeat(3, 2)
    cover = STRENGTH * np.sqrt(heat)[..., None]
    blend: NDArray[Any] = (1 - cover) * gray + cover * colormaps["inferno"](heat)[..., :3]
    blend[absent] = 0.85
    return blend


def _all_images(axis: Axes, absent_figures: dict[str, Any], paper: dict[str, float]) -> None:
    places = np.arange(len(CASES))
    for shift, (metric, color) in zip((-0.2, 0.2), COLORS.items(), strict=True):
        cells = [absent_figures["cases"][case][metric] for case in CASES]
        means = [cell["mean"] for cell in cells]
        axis.bar(
            places + shift,
            means,
            0.38,
            yerr=[cell["deviation"] for cell in cells],
            color=color,
            label=f"mean {metric}" if metric == "confidence" else metric,
        )
        for at, mean in zip(places + shift, means, strict=True):
            axis.text(at, 0.02, f"{mean:.3f}", ha="center", fontsize=8, color=INK[metric])
    theirs = [paper[case] for case in CASES]
    axis.plot(places - 0.2, theirs, "k_", markersize=16, label="paper's image")
    axis.set(xticks=places, ylim=(0, 1.15), yticks=np.linspace(0, 1, 6))
    axis.set_title(f"all {absent_figures['seeds'][0]['images']} test images", fontsize=10)
    axis.set_xticklabels([label.replace(" ", "\n", 1) for label in CASES.values()], fontsize=9)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8, loc="upper left", ncols=3)
