"""Plot of an audit of an upload: accuracy against recovery; matplotlib is imported when drawn."""

import io
from collections.abc import Sequence

from xvfl.audit.sweep import DialResult
from xvfl.audit.upload_audit import NOTHING_KNOWN, UploadResult, recovery

PANELS = {
    "no row known": NOTHING_KNOWN,
    "20 rows known": ("decoder, 20 rows",),
    "200 rows known": ("decoder, 200 rows",),
}
COLORS = {
    "configured": "#1b7f5c",
    "0.3.0": "#c8452f",
    "copies": "#2f6db3",
    "width": "#8e5ea2",
    "skip": "#b0772a",
    "rotation": "#5b6875",
    "projection": "#5b6875",
    "noise": "#d08c2a",
    "levels": "#3a9aa8",
    "dropout": "#a34a6f",
}


def upload_plot(result: UploadResult) -> bytes:
    """Plot accuracy against recovery for every setting, as a PNG; without labels recovery alone."""
    from matplotlib.figure import Figure

    panels = [
        (title, attacks)
        for title, attacks in PANELS.items()
        if recovery(result.configured, attacks) is not None
    ]
    figure = Figure(figsize=(4.2 * max(len(panels), 1), 4.6), layout="constrained")
    axes = figure.subplots(1, max(len(panels), 1), sharey=True, squeeze=False)[0]
    mode = next(reversed(result.configured.accuracy), None)
    for axis, (title, attacks) in zip(axes, panels, strict=False):
        points = _points(result.results, attacks, mode)
        for place, (dial, x, y) in enumerate(points):
            color = COLORS.get(dial.split()[0], "#8a97a3")
            height = place if y is None else y
            marker = "D" if dial in ("configured", "0.3.0") else "o"
            axis.scatter([x], [height], c=color, s=42, marker=marker, zorder=2)
            axis.annotate(dial, (x, height), xytext=(5, 3), textcoords="offset points", fontsize=7)
        found = recovery(result.configured, attacks)
        if found is not None:
            axis.axvline(found.control, color="#8a97a3", linestyle=":", linewidth=1)
        axis.set(title=title, xlabel="recovery of columns (mean |ρ|)", xlim=(0, 1.12))
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    name = "R²" if result.about["task"] == "regression" else "AUROC"
    axes[0].set_ylabel(f"{mode} {name}" if mode else "")
    if mode is None:
        axes[0].set_yticks([])
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    return buffer.getvalue()


def _points(
    results: Sequence[DialResult], attacks: Sequence[str], mode: str | None
) -> list[tuple[str, float, float | None]]:
    found = [(each, recovery(each, attacks)) for each in results]
    return [
        (each.dial, reached.value, each.accuracy[mode] if mode else None)
        for each, reached in found
        if reached is not None
    ]
