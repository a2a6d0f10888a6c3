"""The page of the comparison on digits, with embedded plots."""

import html
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from xvfl.model.report.charts import new_figure, plain_axis, png
from xvfl.model.report.html_page import html_page, picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Accuracy = Mapping[str, Sequence[Mapping[str, float]]]
"""Mean and standard deviation over seeds: by row of the table, one cell per missing rate."""
Pictures = dict[str, NDArray[np.float64]]
"""Images by kind: true, observed, completed."""
STYLE = "tr.ours td{font-weight:600} .ahead{color:var(--good)} .behind{color:var(--bad)}"
LOCAL = {
    "xvfl+, local": ("#d95f02", "-", "o"),
    "X-VFL, local": ("#666666", "-", "s"),
    "random-mask training, local": ("#1f78b4", "-", "^"),
    "standalone, local": ("#999999", "--", "x"),
}
JOINT = {
    "xvfl+, collaborative": ("#1b9e77", "-", "o"),
    "xvfl+, assisted": ("#7570b3", "--", "D"),
    "xvfl+, peers only": ("#7570b3", ":", "x"),
    "X-VFL, collaborative": ("#666666", "-", "s"),
    "random-mask training, collaborative": ("#1f78b4", "-", "^"),
}


def page(
    accuracy: Accuracy,
    differences: Sequence[Mapping[str, Any]],
    rates: Sequence[float],
    seeds: int,
    plots: Mapping[str, bytes],
    picture_rate: float,
    command: str,
) -> str:
    """Render the page; without plots it holds the tables alone."""
    about = f"""<p>One party holds the left half of 1,797 scanned handwritten digits, the other the
right half.
In 40 % of the training rows both parties observe every feature. In the other training rows, and in
every test row, one party misses a share of its features, the <em>missing rate</em>. Prediction
modes:</p>
<ul><li><b>local</b>: the party with missing features predicts by itself; nothing is sent.</li>
<li><b>assisted</b>: the same party predicts with the embeddings of parties that observe the row in
full. <b>peers only</b>: the prediction of those parties without it.</li>
<li><b>collaborative</b>: all parties predict together; missing features are completed.</li></ul>
{picture(plots.get("accuracy.png"), "accuracy over missing rates")}
{_accuracy_section(accuracy, rates, seeds)}
<p><em>xvfl+</em> is the default method of this package, <em>X-VFL</em> the paper's loss.
<em>Random-mask training</em> is LASER-VFL trained on randomly masked inputs with zero imputation,
the strongest simple baseline we know. A local prediction cannot use information that only the
other party has. Much of the gain of <em>assisted</em> comes from the peer, so <em>peers only</em>
is listed next to it.</p>
{_difference_section(differences)}
{_completion_section(plots, picture_rate)}"""
    made = f" with <code>{html.escape(command)}</code>; all metrics are in metrics.json"
    return html_page("Two parties, half an image each", about, style=STYLE, made=made)


def plots(
    accuracy: Accuracy, rates: Sequence[float], spread: bool, pictures: Pictures
) -> dict[str, bytes]:
    """Render the plots as PNG, by file name."""
    return {
        "accuracy.png": png(accuracy_plot(accuracy, rates, spread)),
        "completed.png": png(completion_plot(pictures)),
    }


def accuracy_plot(accuracy: Accuracy, rates: Sequence[float], spread: bool) -> "Figure":
    """Plot accuracy over missing rates: local on the left, joint modes on the right."""
    figure = new_figure(11, 4.8)
    axes = figure.subplots(1, 2)
    titles = ("one party", "both parties")
    for axis, lines, title in zip(axes, (LOCAL, JOINT), titles, strict=True):
        for name, (color, line, marker) in lines.items():
            means = np.array([100 * cell["mean"] for cell in accuracy[name]])
            axis.plot(rates, means, color=color, linestyle=line, marker=marker, label=name)
            if spread:
                sd = np.array([100 * cell["deviation"] for cell in accuracy[name]])
                axis.fill_between(rates, means - sd, means + sd, color=color, alpha=0.12)
        axis.set(title=title, xlabel="missing rate", ylabel="accuracy in %")
        plain_axis(axis)
        axis.grid(alpha=0.25)
        below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.13), "ncols": 2}
        axis.legend(frameon=False, fontsize=9, **below)
    return figure


def completion_plot(pictures: Pictures) -> "Figure":
    """Plot true, observed and completed digits."""
    from matplotlib import colormaps

    count = len(pictures["true"])
    figure = new_figure(count * 1.25, 4)
    axes = figure.subplots(3, count)
    colors = colormaps["gray_r"].with_extremes(bad="#f4b6b0")
    for row, (name, images) in zip(axes, pictures.items(), strict=True):
        row[0].set_ylabel(name)
        for axis, image in zip(row, images, strict=True):
            axis.imshow(np.ma.masked_invalid(image), cmap=colors, vmin=0, vmax=1)
            axis.axvline(3.5, color="#1b9e77", linewidth=1)
            axis.set(xticks=[], yticks=[])
    return figure


def percent(cell: Mapping[str, float], seeds: int) -> str:
    """Format an accuracy in percent, with its standard deviation if there are several seeds."""
    text = f"{100 * cell['mean']:.1f}"
    return f"{text} ± {100 * cell['deviation']:.1f}" if seeds > 1 else text


def _accuracy_section(accuracy: Accuracy, rates: Sequence[float], seeds: int) -> str:
    head = "".join(f"<th>{rate:g}</th>" for rate in rates)
    body = ""
    for name, cells in accuracy.items():
        highlight = ' class="ours"' if name.startswith("xvfl+") else ""
        text = "".join(f"<td>{percent(cell, seeds)}</td>" for cell in cells)
        body += f"<tr{highlight}><td>{html.escape(name)}</td>{text}</tr>"
    return f"<table><tr><th>accuracy in % at missing rate</th>{head}</tr>{body}</table>"


def _difference_section(differences: Sequence[Mapping[str, Any]]) -> str:
    if not differences:
        return ""
    body = "".join(
        f"<tr><td>{html.escape(line['method'])} − {html.escape(line['other'])}</td>"
        f"<td>{line['rate']:g}</td><td>{100 * line['mean']:+.1f} ± {100 * line['error']:.1f}</td>"
        f'<td class="{line["verdict"]}">{line["verdict"]}</td></tr>'
        for line in differences
    )
    return (
        "<h2>Paired differences over seeds</h2>"
        "<table><tr><th>percentage points, ± standard error</th>"
        f"<th>missing rate</th><th>difference</th><th>verdict</th></tr>{body}</table>"
    )


def _completion_section(plots: Mapping[str, bytes], rate: float) -> str:
    if not plots:
        return ""
    return f"""<h2>Completed features</h2>
<p>Test digits at missing rate {rate:g}: the true images, the observed features (red: missing), and
the missing features completed from the embedding of the other half.</p>
{picture(plots["completed.png"], "completed digits")}"""
