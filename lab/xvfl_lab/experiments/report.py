"""The demo's report: one HTML page with its pictures inside."""

import base64
import html
import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib

matplotlib.use("Agg")
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from numpy.typing import NDArray

from xvfl.version import VERSION

Rows = Mapping[str, Sequence[Mapping[str, float]]]

STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:960px;margin:2rem auto;padding:0 1rem;color:#222}
img{max-width:100%} table{border-collapse:collapse;font-variant-numeric:tabular-nums}
td,th{padding:.25rem .7rem;text-align:right;border-bottom:1px solid #ddd}
td:first-child,th:first-child{text-align:left} tr.ours td{font-weight:600}
code{background:#f3f3f3;padding:.1rem .3rem} .ahead{color:#12805c}.behind{color:#b3261e}
"""
ALONE = {
    "X-VFL, alone": ("#d95f02", "-", "o"),
    "same model, zero fill, alone": ("#d95f02", ":", "v"),
    "paper's loss, alone": ("#666666", "-", "s"),
    "random-mask training, alone": ("#1f78b4", "-", "^"),
    "standalone model": ("#999999", "--", "x"),
}
TOGETHER = {
    "X-VFL, all together": ("#1b9e77", "-", "o"),
    "X-VFL, assisted": ("#7570b3", "--", "D"),
    "peers alone": ("#7570b3", ":", "x"),
    "random-mask training, together": ("#1f78b4", "-", "^"),
    "same model, zero fill, together": ("#1b9e77", ":", "v"),
}


def page(
    rows: Rows,
    gaps: Sequence[Mapping[str, Any]],
    rates: Sequence[float],
    seeds: int,
    plots: Mapping[str, bytes],
    shown_rate: float,
    command: str,
) -> str:
    """Write the page."""
    return f"""<!doctype html><html lang="en"><head><meta charset="utf-8">
<title>xvfl demo</title><style>{STYLE}</style></head><body>
<h1>Two parties, half a picture each</h1>
<p>One party holds the left half of 1,797 scanned handwritten digits, the other the right half.
Only 40 % of the training rows are whole at both; in the others one party misses a share of its
features, the <em>missing rate</em>. In every test row one party misses that share too. Three ways
to predict:</p>
<ul><li><b>alone</b> (<code>local</code>): the incomplete party by itself; nothing crosses the wire;
</li><li><b>assisted</b>: still that party, with the embedding of the other; with two parties that
is the joint decision, made at one of them. Without a gap it asks nobody. <em>Peers alone</em> is
what the other knows without it;</li>
<li><b>all together</b> (<code>collaborative</code>): both embeddings, the gaps completed.</li></ul>
<img alt="accuracy over missing rates" src="{_embed(plots["accuracy.png"])}">
{_accuracy_table(rows, rates, seeds)}
<p>Lines that share a model share a colour. A party that predicts alone has a real ceiling: what is
missing everywhere cannot be known. Most of what <em>assisted</em> knows is the peer's, which is
why the peer alone is always shown beside it. <em>Random-mask training</em> is LASER-VFL trained on
randomly masked inputs with zero fill, the strongest simple rival we know.</p>
{_gap_section(gaps)}
<h2>Completed features</h2>
<p>Test digits at missing rate {shown_rate:g}: the truth, what the parties see (red: missing), and
the gaps completed from the other half's embedding.</p>
<img alt="completed digits" src="{_embed(plots["completed.png"])}">
<p>Made by xvfl {VERSION} with <code>{html.escape(command)}</code>;
every figure is also in metrics.json.</p>
</body></html>
"""


def accuracy_plot(rows: Rows, rates: Sequence[float], spread: bool) -> Figure:
    """Draw accuracy over missing rates: alone on the left, with the peer on the right."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.8), layout="constrained")
    titles = ("a party alone", "with the other party")
    for axis, lines, title in zip(axes, (ALONE, TOGETHER), titles, strict=True):
        for name, (colour, line, marker) in lines.items():
            means = np.array([100 * cell["mean"] for cell in rows[name]])
            axis.plot(rates, means, color=colour, linestyle=line, marker=marker, label=name)
            if spread:
                sd = np.array([100 * cell["deviation"] for cell in rows[name]])
                axis.fill_between(rates, means - sd, means + sd, color=colour, alpha=0.12)
        axis.set(title=title, xlabel="missing rate", ylabel="accuracy in %")
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
        below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.13), "ncols": 2}
        axis.legend(frameon=False, fontsize=9, **below)
    return figure


def completion_plot(pictures: Mapping[str, NDArray[np.float32]]) -> Figure:
    """Draw digits as they are, as seen and as completed."""
    count = len(pictures["true"])
    figure, axes = plt.subplots(3, count, figsize=(count * 1.25, 4), layout="constrained")
    colours = plt.get_cmap("gray_r").with_extremes(bad="#f4b6b0")
    for row, (name, images) in enumerate(pictures.items()):
        for column, image in enumerate(images):
            axis = axes[row, column]
            axis.imshow(np.ma.masked_invalid(image), cmap=colours, vmin=0, vmax=1)
            axis.axvline(3.5, color="#1b9e77", linewidth=1)
            axis.set(xticks=[], yticks=[])
            if column == 0:
                axis.set_ylabel(name)
    return figure


def png(figure: Figure) -> bytes:
    """Render a figure and let go of it."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    plt.close(figure)
    return buffer.getvalue()


def _embed(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


def _accuracy_table(rows: Rows, rates: Sequence[float], seeds: int) -> str:
    head = "".join(f"<th>{rate:g}</th>" for rate in rates)
    body = ""
    for name, cells in rows.items():
        ours = ' class="ours"' if name.startswith("X-VFL") else ""
        text = "".join(f"<td>{_cell(cell, seeds)}</td>" for cell in cells)
        body += f"<tr{ours}><td>{html.escape(name)}</td>{text}</tr>"
    return f"<table><tr><th>accuracy in % at missing rate</th>{head}</tr>{body}</table>"


def _cell(cell: Mapping[str, float], seeds: int) -> str:
    text = f"{100 * cell['mean']:.1f}"
    return f"{text} ± {100 * cell['deviation']:.1f}" if seeds > 1 else text


def _gap_section(gaps: Sequence[Mapping[str, Any]]) -> str:
    if not gaps:
        return ""
    body = "".join(
        f"<tr><td>{html.escape(gap['ours'])} − {html.escape(gap['rival'])}</td>"
        f"<td>{gap['rate']:g}</td><td>{100 * gap['mean']:+.1f} ± {100 * gap['error']:.1f}</td>"
        f'<td class="{gap["verdict"]}">{gap["verdict"]}</td></tr>'
        for gap in gaps
    )
    return (
        "<h2>Paired differences over seeds</h2><table><tr><th>points, ± standard error</th>"
        f"<th>missing rate</th><th>difference</th><th>verdict</th></tr>{body}</table>"
    )
