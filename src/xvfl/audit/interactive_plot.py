"""Plot of an audit of interactive training; matplotlib is imported when it is drawn."""

from collections.abc import Sequence

from xvfl.audit.findings import Finding
from xvfl.model.report.charts import BAD, GOOD, LINE, NEUTRAL, new_figure, plain_axis, png

SERIES = (
    ("without_federation", "own data", NEUTRAL, "|"),
    ("unprotected", "no protection", BAD, "o"),
    ("protected", "with protection", GOOD, "D"),
)


def audit_plot(findings: Sequence[Finding]) -> bytes:
    """Plot what each attack reaches, as a PNG."""
    figure = new_figure(9.5, 0.9 + 0.29 * len(findings))
    axis = figure.subplots()
    places = range(len(findings))[::-1]
    for place, finding in zip(places, findings, strict=True):
        values = [getattr(finding, name) for name, *_ in SERIES]
        axis.plot([min(values), max(values)], [place, place], color=LINE, zorder=1)
    for name, label, color, marker in SERIES:
        values = [getattr(finding, name) for finding in findings]
        size = 110 if marker == "|" else 34
        axis.scatter(values, places, s=size, c=color, marker=marker, label=label, zorder=2)
    names = [f"{each.key.attack} · {each.key.metric}" for each in findings]
    axis.set_yticks(list(places), names, fontsize=8)
    axis.set(xlim=(-0.03, 1.03), ylim=(-0.7, len(findings) - 0.3))
    plain_axis(axis, names=True)
    axis.legend(frameon=False, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0), fontsize=9)
    return png(figure)
