"""Plot of an audit of interactive training; matplotlib is imported when it is drawn."""

import io
from collections.abc import Sequence

from xvfl.audit.findings import Finding

SERIES = (
    ("without_federation", "own data", "#8a97a3", "|"),
    ("unprotected", "no protection", "#c8452f", "o"),
    ("protected", "with protection", "#1b7f5c", "D"),
)


def audit_plot(findings: Sequence[Finding]) -> bytes:
    """Plot what each attack reaches, as a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.5, 0.9 + 0.29 * len(findings)), layout="constrained")
    axis = figure.subplots()
    places = range(len(findings))[::-1]
    for place, finding in zip(places, findings, strict=True):
        values = [getattr(finding, name) for name, *_ in SERIES]
        axis.plot([min(values), max(values)], [place, place], color="#d9dee3", zorder=1)
    for name, label, color, marker in SERIES:
        values = [getattr(finding, name) for finding in findings]
        size = 110 if marker == "|" else 34
        axis.scatter(values, places, s=size, c=color, marker=marker, label=label, zorder=2)
    names = [f"{each.key.attack} · {each.key.metric}" for each in findings]
    axis.set_yticks(list(places), names, fontsize=8)
    axis.set(xlim=(-0.03, 1.03), ylim=(-0.7, len(findings) - 0.3))
    axis.grid(axis="x", alpha=0.25)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(axis="y", length=0)
    axis.legend(frameon=False, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0), fontsize=9)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    return buffer.getvalue()
