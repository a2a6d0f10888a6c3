"""The demo in one process: train on two halves of digits, and write a page about the result."""

import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from sklearn.ensemble import RandomForestClassifier

from xvfl import DataWarning, XVFLClassifier
from xvfl.cli.demo_data import PARTIES, Digits, digits_with_gaps
from xvfl.model.report.charts import NO_MATPLOTLIB, has_matplotlib, new_figure, plain_axis, png
from xvfl.model.report.html_page import html_page, picture, table_head
from xvfl.model.run_dir import RunDir

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RATE, OVERLAP, TEST_FRACTION, SEED = 0.5, 0.4, 0.3, 0
"""Missing rate of an incomplete row, share of complete training rows, share of test rows."""
PARAMETERS: dict[str, Any] = {"device": "cpu", "verbose": False, "random_state": SEED}
N_PICTURES = 8
BOTH = "both"
Pictures = dict[str, NDArray[np.float64]]
"""Images by kind: true, observed, completed."""


@dataclass(frozen=True)
class Accuracy:
    """Accuracy of one way to predict, on the same test rows."""

    name: str
    party: str
    """Who takes part: a party, or both."""
    value: float


def run_demo(out: Path, console: Console) -> None:
    """Train, compare, and write report.html, metrics.json and, with matplotlib, the pictures."""
    folder = RunDir(out).create()
    train, test = digits_with_gaps(RATE, OVERLAP, TEST_FRACTION, SEED)
    console.print(
        f"Two parties each hold one half of {len(train.y) + len(test.y):,} scanned digits. In "
        f"{1 - OVERLAP:.0%} of the training rows, and in every test row, one of them misses half "
        "of its pixels."
    )
    model = XVFLClassifier(**PARAMETERS)
    with console.status("training …"), warnings.catch_warnings():
        # Pixels with the same value in all training rows are left out.
        warnings.simplefilter("ignore", DataWarning)
        model.fit(train.observed, train.y)
        found = [*alone(train, test), *by_model(model, test)]
        pictures = complete_some(model, test)
    console.print(_table(found))
    plots = {}
    if has_matplotlib():
        plots = {"accuracy.png": png(_bars(found)), "completed.png": png(_images(pictures))}
    else:
        console.print(NO_MATPLOTLIB, markup=False)
    for name, data in plots.items():
        folder.write_bytes(name, data)
    folder.write_json("metrics.json", {"accuracy": [asdict(each) for each in found]})
    folder.write_text("report.html", page(found, plots, len(train.y), len(test.y)))
    console.print(f"wrote {out / 'report.html'} and {out / 'metrics.json'}")


def alone(train: Digits, test: Digits) -> list[Accuracy]:
    """Train and test a random forest on each party's own table: what it does without the other."""
    found = []
    for name in PARTIES:
        forest = RandomForestClassifier(random_state=SEED).fit(train.observed[name], train.y)
        score = float(forest.score(test.observed[name], test.y))
        found.append(Accuracy("a random forest of its own table", name, score))
    return found


def by_model(model: XVFLClassifier, test: Digits) -> list[Accuracy]:
    """Score the model with each party alone, and with both."""
    found = [
        Accuracy("xvfl, while the other party is away", name, score)
        for name in PARTIES
        for score in [model.score({name: test.observed[name]}, test.y, mode="local", party=name)]
    ]
    return [*found, Accuracy("xvfl, both parties", BOTH, model.score(test.observed, test.y))]


def complete_some(model: XVFLClassifier, test: Digits) -> Pictures:
    """Complete the first test rows: true, observed and completed images, (n, 8, 8) each."""
    rows = test.take(test.y.index[:N_PICTURES])
    # Pixels with a single value in all training rows are not part of the model.
    completed = {name: table.fillna(0) for name, table in model.complete(rows.observed).items()}
    tables = {"true": rows.complete, "observed": rows.observed, "completed": completed}
    return {
        kind: np.concatenate([halves[name].to_numpy().reshape(-1, 8, 4) for name in PARTIES], 2)
        / 16
        for kind, halves in tables.items()
    }


def page(found: list[Accuracy], plots: dict[str, bytes], n_train: int, n_test: int) -> str:
    """Render the page; without plots it holds the table alone."""
    best = max(each.value for each in found if each.party != BOTH)
    together = next(each.value for each in found if each.party == BOTH)
    completed = ""
    if "completed.png" in plots:
        completed = f"""<h2>What each party has, and what was filled in</h2>
<p>Above, eight true digits. In the middle, what the parties have: the left party the pixels left of
the green line, the right party those right of it; red pixels are missing. Below, the missing pixels
as the model fills them in. In this demo the model is one process and has both tables.</p>
{picture(plots["completed.png"], "true, observed and completed digits")}"""
    return html_page(
        "Two parties, half an image each",
        f"""<p>One party holds the left half of each scanned digit, the other the right half. Which
digit is it? Neither can give its half away, and one of the two always misses half of its pixels.
A model was trained on {n_train:,} digits and tested on {n_test:,} others.</p>
<div class="box"><p><b>Together they name {together:.1%} of the digits correctly; the best that a
party reaches alone is {best:.1%}.</b></p></div>
<h2>What can be predicted by whom</h2>""",
        picture(plots.get("accuracy.png"), "accuracy by who takes part"),
        _html_table(found),
        """<p>A random forest is what a party can do with its own table and the labels. xvfl is
trained with both tables, and predicts with both, or with one while the other party is away. A party
alone cannot know what only the other half shows.</p>""",
        completed,
        made=" with <code>xvfl demo</code>; the figures are in metrics.json",
    )


def _html_table(found: list[Accuracy]) -> str:
    lines = "".join(
        f'<tr><td class="wide">{each.name}</td><td>{each.party}</td>'
        f'<td class="n" data-name="accuracy">{each.value:.1%}</td></tr>'
        for each in found
    )
    head = table_head(("way to predict", "who takes part", "accuracy"), ("accuracy",))
    return f"<table>{head}<tbody>{lines}</tbody></table>"


def _table(found: list[Accuracy]) -> Table:
    table = Table("", "who takes part", title="digits named correctly, on test rows")
    table.add_column("accuracy", justify="right")
    for each in found:
        table.add_row(each.name, each.party, f"{each.value:.1%}")
    return table


def _bars(found: list[Accuracy]) -> "Figure":
    """Plot the accuracies as bars."""
    figure = new_figure(8, 0.6 + 0.42 * len(found))
    axis, places = figure.subplots(), list(range(len(found)))[::-1]
    colors = ["#1b9e77" if each.name.startswith("xvfl") else "#8a97a3" for each in found]
    axis.barh(places, [100 * each.value for each in found], color=colors, height=0.66)
    for place, each in zip(places, found, strict=True):
        axis.text(100 * each.value, place, f" {100 * each.value:.1f}", va="center", fontsize=9)
    axis.set_yticks(places, [f"{each.name}: {each.party}" for each in found], fontsize=9)
    axis.set(xlabel="accuracy in %", xlim=(0, 108))
    plain_axis(axis, names=True)
    return figure


def _images(pictures: Pictures) -> "Figure":
    """Plot true, observed and completed digits, one below the other."""
    from matplotlib import colormaps

    count = len(pictures["true"])
    figure = new_figure(count * 1.25, 4)
    axes = figure.subplots(len(pictures), count)
    colors = colormaps["gray_r"].with_extremes(bad="#f4b6b0")
    for row, (name, images) in zip(axes, pictures.items(), strict=True):
        row[0].set_ylabel(name)
        for axis, image in zip(row, images, strict=True):
            axis.imshow(np.ma.masked_invalid(image), cmap=colors, vmin=0, vmax=1)
            axis.axvline(3.5, color="#1b9e77", linewidth=1)
            axis.set(xticks=[], yticks=[])
    return figure
