"""Plot of `trees`: AUROC over the missing rate, a row a mode, a column a data set."""

from typing import Any

from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from numpy.typing import NDArray

from xvfl_lab.experiments.figure_tables import metric_of
from xvfl_lab.experiments.plots import COLORS, MARKERS, tidy

MODES = ("local", "collaborative")


def plot(figures: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> Figure:
    """Draw every method over the missing rate."""
    figure, axes = plt.subplots(
        len(MODES), len(figures), figsize=(4 * len(figures), 6.5), layout="constrained", sharex=True
    )
    for row, mode in zip(axes, MODES, strict=True):
        for at, (dataset, of_set) in zip(row, figures.items(), strict=True):
            metric = metric_of(dataset)
            numbers = [each for each in of_set["numbers"] if each["way"] == mode]
            for method in dict.fromkeys(each["method"] for each in numbers):
                mine = [each for each in numbers if each["method"] == method]
                at.errorbar(
                    [each["rate"] for each in mine],
                    [100 * each[metric]["mean"] for each in mine],
                    [100 * each[metric]["deviation"] for each in mine],
                    label=method,
                    color=COLORS[method],
                    marker=MARKERS[method],
                    capsize=2,
                )
            at.set(title=f"{dataset}, {mode}", ylabel=f"{metric} in %")
            tidy(at)
        row[0].legend(frameon=False, fontsize=8)
    for at in axes[-1]:
        at.set_xlabel("R_miss")
    return figure
