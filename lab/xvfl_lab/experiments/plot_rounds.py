"""Plot of `rounds`: ‖∇L‖² and the loss over rounds of communication."""

from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from xvfl_lab.experiments.rounds import ALGORITHMS, running

STYLES = {"sgd": ("SGD", "#D55E00", "-"), "page": ("PAGE", "#0072B2", "-")}
SLOPES = {-0.5: ("slope −1/2", ":"), -1.0: ("slope −1", "--")}


def plot(figures: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> Figure:
    """Lay out the known problem, then ‖∇L‖² and the loss on the digits."""
    figure, (known, slope, loss) = plt.subplots(1, 3, figsize=(14, 4.2), layout="constrained")
    _known(known, figures["known problem"], arrays)
    real = figures["digits"]
    at = arrays["digits/rounds"]
    for name in ALGORITHMS:
        label, color, line = STYLES[name]
        losses, squares = arrays[f"digits/{name}"].swapaxes(0, 1)
        label = f"{label}, η = {real[name]['step size']:g}"
        _band(loss, at, losses, color, line, label)
        averages = np.stack([running(each) for each in squares])
        _band(slope, at[1:], averages[:, 1:], color, line, label)
    slope.set(xscale="log", yscale="log", title="digits, X-VFL's loss")
    slope.set(xlabel="rounds T", ylabel="average ‖∇L‖² up to T")
    loss.set(yscale="log", title="digits, X-VFL's loss")
    loss.set(xlabel="rounds", ylabel="training loss")
    for axis in (known, slope, loss):
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
        axis.legend(frameon=False, fontsize=9)
    return figure


def _known(axis: Axes, figures: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
    at = arrays["known/rounds"]
    for name in ALGORITHMS:
        label, color, line = STYLES[name]
        fitted = figures["exponent"][name]
        text = f"{label}: T^{fitted:.2f}".replace("-", "−")
        axis.plot(at, arrays[f"known/{name}"], line, color=color, label=text)
    late = at[at >= 0.1 * at[-1]]
    for (power, (label, line)), name in zip(SLOPES.items(), ALGORITHMS, strict=True):
        start = arrays[f"known/{name}"][at == late[0]][0]
        guide = 1.35 * start * (late / late[0]) ** power
        axis.plot(late, guide, line, color="#444444", label=label)
    axis.set(xscale="log", yscale="log", title="known problem, best step size for each T")
    axis.set(xlabel="rounds T", ylabel="average ‖∇L‖² up to T")


def _band(
    axis: Axes, at: NDArray[Any], seeds: NDArray[Any], color: str, line: str, label: str
) -> None:
    """Draw the mean over seeds, and the range."""
    axis.plot(at, seeds.mean(0), line, color=color, label=label)
    axis.fill_between(at, seeds.min(0), seeds.max(0), color=color, alpha=0.2, linewidth=0)
