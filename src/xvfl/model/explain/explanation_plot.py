"""Plot of an explanation; matplotlib is imported when it is drawn."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from xvfl.model.explain.bootstrap import Estimate
from xvfl.model.explain.explanation import Explanation
from xvfl.model.report.charts import BAD, GOOD, INK, NEUTRAL, new_figure, plain_axis

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NOTHING = "#a9b4bf"
"""Color of estimates whose interval contains 0."""


def plot_explanation(explanation: Explanation, max_features: int) -> "Figure":
    """Plot the Shapley value of each party and, below, the most important features."""
    parties = sorted(explanation.worth, key=lambda each: -each.shapley.value)
    features = explanation.importances[:max_features]
    heights = [0.8 + 0.34 * len(parties)]
    if features:
        heights.append(0.8 + 0.28 * len(features))
    figure = new_figure(7.5, sum(heights) + 0.3)
    axes = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    names, metric = [each.party for each in parties], explanation.metric_name
    together = explanation.together.value
    _draw(axes[0], names, [each.shapley for each in parties])
    axes[0].set(
        title=f"Parties: {metric} {explanation.nobody:.3f} without any, {together:.3f} with all",
        xlabel=f"Shapley value in {metric}, with joint 95 % intervals",
    )
    if features:
        names = [f"{each.party}: {each.feature}" for each in features]
        _draw(axes[1], names, [each.importance for each in features])
        axes[1].set(title="Features", xlabel=f"decrease of {metric} when permuted")
    return figure


def _draw(axis: Any, names: Sequence[str], estimates: Sequence[Estimate]) -> None:
    """Draw one bar with its interval for each name, the first on top."""
    places = list(range(len(names)))[::-1]
    values = [each.value for each in estimates]
    colors = [NOTHING if each.is_zero else GOOD if each.value > 0 else BAD for each in estimates]
    axis.barh(places, values, color=colors, height=0.66)
    for place, each in zip(places, estimates, strict=True):
        axis.plot([each.low, each.high], [place, place], color=INK, linewidth=1.4)
    axis.set_yticks(places, names, fontsize=9)
    axis.axvline(0, color=NEUTRAL, linewidth=0.8)
    plain_axis(axis, names=True)
