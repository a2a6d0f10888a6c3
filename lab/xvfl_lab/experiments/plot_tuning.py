"""Plot of `tuning`: the test score of every method over missing rates, one column a data set."""

from typing import Any

from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from numpy.typing import NDArray

from xvfl_lab.experiments.claims import PAPER
from xvfl_lab.experiments.compare import mean
from xvfl_lab.experiments.figure_tables import metric_of
from xvfl_lab.experiments.plots import COLORS
from xvfl_lab.experiments.tuning_tables import UNTUNED, results_of

MODES = {"assisted (baselines: local)": ("assisted", "local"), "collaborative": ("collaborative",)}
"""Rows of the figure: a method is drawn in the first of the modes that it has."""


def plot(figures: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> Figure:
    """Draw means and standard deviations over seeds."""
    figure, axes = plt.subplots(
        len(MODES),
        len(figures),
        figsize=(4.0 * len(figures), 6.0),
        layout="constrained",
        squeeze=False,
    )
    for column, (dataset, of_set) in zip(axes.T, figures.items(), strict=True):
        results, metric = results_of(dataset, of_set["runs"]), metric_of(dataset)
        for axis, (title, modes) in zip(column, MODES.items(), strict=True):
            for method in dict.fromkeys(run["method"] for run in of_set["runs"]):
                of_method = [each for each in results if each.config.name == method]
                mode = next((each for each in modes if each in of_method[0].metrics), None)
                if mode is None:
                    continue
                rates = sorted({each.config.rate for each in of_method})
                scores = [mean(of_method, (method, mode), rate, metric) for rate in rates]
                axis.errorbar(
                    rates,
                    [100 * each.mean for each in scores],
                    [100 * each.deviation for each in scores],
                    label=f"{method}, λ chosen" if method == PAPER else method,
                    color=COLORS[PAPER if method == UNTUNED else method],
                    marker="o",
                    capsize=2,
                    linestyle="--" if method == UNTUNED else "-",
                )
            axis.set(title=f"{dataset}, {title}", xlabel="R_miss", ylabel=f"{metric} in %")
            axis.spines[["top", "right"]].set_visible(False)
            axis.grid(alpha=0.25)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    return figure
