"""Plot of `label-protection`: leakage against the score, one panel for each data set."""

from typing import Any

from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from numpy.typing import NDArray

from xvfl_lab.experiments.label_protection import MODES, summary

STYLES = {
    "local": ("#D55E00", "o"),
    "assisted": ("#009E73", "s"),
    "collaborative": ("#0072B2", "^"),
}


def plot(figures: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> Figure:
    """Draw each setting as a point for each mode."""
    table = summary(figures)
    figure, axes = plt.subplots(
        1, len(figures), figsize=(4.6 * len(figures), 4.2), layout="constrained", squeeze=False
    )
    for axis, (dataset, settings) in zip(axes[0], figures.items(), strict=True):
        rows = {name: table[f"{dataset} {name}"] for name in settings}
        leakage = {name: max(row["leakage"].values()) for name, row in rows.items()}
        for mode in MODES:
            color, marker = STYLES[mode]
            scores = [rows[name][mode] for name in settings]
            axis.plot(list(leakage.values()), scores, marker, color=color, label=mode)
        for name, x in leakage.items():
            axis.annotate(
                name,
                (x, rows[name]["collaborative"]),
                (0, 6),
                textcoords="offset points",
                fontsize=7,
            )
        metric = next(iter(settings.values()))["metric"]
        axis.axvline(0.5, color="#999999", linewidth=0.8, linestyle=":")
        axis.set(title=dataset, xlabel="AUROC of the strongest label attack", ylabel=f"{metric}, %")
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
    axes[0][0].legend(frameon=False, fontsize=9)
    return figure
