"""Plot of an audit of an upload: accuracy against recovery; matplotlib is imported when drawn."""

from collections.abc import Sequence
from typing import Any

from xvfl.audit.sweep import DialResult
from xvfl.audit.upload_audit import NOTHING_KNOWN, UploadResult, recovery
from xvfl.model.report.charts import BAD, GOOD, INK, NEUTRAL, new_figure, plain_axis, png

PANELS = {
    "no row known": NOTHING_KNOWN,
    "20 rows known": ("decoder, 20 rows",),
    "200 rows known": ("decoder, 200 rows",),
}
COLORS = {
    "configured": GOOD,
    "0.3.0": BAD,
    "copies": "#2f6db3",
    "width": "#8e5ea2",
    "skip": "#b0772a",
    "rotation": INK,
    "projection": "#7a8794",
    "noise": "#e0a030",
    "levels": "#3a9aa8",
    "dropout": "#a34a6f",
}
"""By the first word of a setting; settings of one dial have different markers."""
MARKERS = "os^vP*"


def upload_plot(result: UploadResult) -> bytes:
    """Plot accuracy against recovery for every setting, as a PNG; without labels recovery alone."""
    panels = {
        title: attacks
        for title, attacks in PANELS.items()
        if recovery(result.configured, attacks) is not None
    }
    figure = new_figure(3.4 * len(panels) + 2.0, 4.2)
    axes = figure.subplots(1, max(len(panels), 1), sharey=True, squeeze=False)[0]
    mode = next(reversed(result.configured.accuracy), None)
    for axis, (title, attacks) in zip(axes, panels.items(), strict=False):
        _draw_panel(axis, _points(result.results, attacks, mode))
        found = recovery(result.configured, attacks)
        if found is not None:
            axis.axvline(found.control, color=NEUTRAL, linestyle=":", label="chance")
        axis.set(title=title, xlabel="recovery of columns", xlim=(0, 1.03))
        axis.grid(alpha=0.25)
        plain_axis(axis)
    name = "R²" if result.about["task"] == "regression" else "AUROC"
    axes[0].set_ylabel(f"{mode} {name}" if mode else "")
    if mode is None:
        axes[0].set_yticks([])
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=8)
    return png(figure)


def _draw_panel(axis: Any, points: Sequence[tuple[str, float, float | None]]) -> None:
    """Draw one point for each setting; without accuracy, one below the other."""
    drawn: dict[str, int] = {}
    for place, (dial, x, y) in enumerate(points):
        family = dial.split()[0]
        number = drawn[family] = drawn.get(family, -1) + 1
        first = dial in ("configured", "0.3.0")
        axis.scatter(
            [x],
            [-place if y is None else y],
            c=COLORS.get(family, NEUTRAL),
            s=60 if first else 36,
            marker="D" if first else MARKERS[number % len(MARKERS)],
            label=dial,
            zorder=3 if first else 2,
        )


def _points(
    results: Sequence[DialResult], attacks: Sequence[str], mode: str | None
) -> list[tuple[str, float, float | None]]:
    found = [(each, recovery(each, attacks)) for each in results]
    return [
        (each.dial, reached.value, each.accuracy[mode] if mode else None)
        for each, reached in found
        if reached is not None
    ]
