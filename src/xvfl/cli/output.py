"""Output of the commands: error messages, exit code, tables."""

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.table import Table

from xvfl.system.printable import printable

if TYPE_CHECKING:
    from xvfl.model.evaluation import Evaluation
    from xvfl.model.explain.explanation import Explanation
    from xvfl.model.tree_comparison import TreeComparison

FINISHED_WITHOUT = 3
"""Exit code of a coordinator whose run finished without some of its parties."""
METRICS = {
    "classification": {
        "accuracy": "accuracy",
        "balanced_accuracy": "balanced",
        "auroc": "AUROC",
        "nll": "NLL",
        "ece": "ECE",
    },
    "regression": {"r2": "R²", "rmse": "RMSE", "mae": "MAE"},
}
"""The heading of each metric, by task."""
COMPARED = {"classification": ("auroc", "accuracy"), "regression": ("r2", "rmse")}
"""The metrics of comparisons; the first one compares modes."""

SHOWN_FEATURES = 10
"""Number of features that `xvfl explain` prints."""


def print_error(text: str) -> None:
    """Print a line on standard error; escape what a terminal could act on."""
    print(printable(text), file=sys.stderr)


def print_line(text: str) -> None:
    """Print a line that may hold texts of others; escape what a terminal could act on."""
    print(printable(text))


def print_evaluation(name: str, evaluation: "Evaluation") -> None:
    """Print one line for each mode and party; a missing line shows its reason."""
    metrics, title = METRICS[evaluation.task], f"{name}: {evaluation.split} rows"
    if evaluation.majority is not None:
        title += f"; majority class {evaluation.majority:.3f}"
    columns = ["mode", "party", "rows", *metrics.values()]
    has_bytes = any(line.bytes_per_row is not None for line in evaluation.lines)
    table = new_table(title, [*columns, "bytes/row"] if has_bytes else columns)
    for line in evaluation.lines:
        values = [_figure(line.metrics, metric) for metric in metrics if line.metrics]
        if line.bytes_per_row is not None:
            values.append(f"{line.bytes_per_row:.0f}")
        table.add_row(line.mode, line.party, str(line.rows), *values or [line.reason])
    print_table(table)
    _print_same_rows(evaluation)


def _print_same_rows(evaluation: "Evaluation") -> None:
    """Print the modes on the same rows, if the lines have different rows."""
    if len({line.rows for line in evaluation.lines if line.metrics}) < 2:
        return
    modes = list(dict.fromkeys(mode for each in evaluation.same_rows for mode in each.metrics))
    if len(modes) < 2:
        return
    metric = COMPARED[evaluation.task][0]
    heading = f"compare modes on the same rows: {METRICS[evaluation.task][metric]}"
    table = new_table(heading, ["party", "rows", *modes])
    table.columns[0].header = "rows of"
    for each in evaluation.same_rows:
        values = [_figure(each.metrics.get(mode), metric) for mode in modes]
        table.add_row(each.party, str(each.rows), *values)
    print_table(table)


def print_trees(name: str, comparison: "TreeComparison") -> None:
    """Print two metrics of model and trees on the same rows, and the seconds of each."""
    method, split = comparison.method, comparison.evaluation.split
    task = comparison.evaluation.task
    title = f"{name}: {method} and trees (LightGBM), {split} rows"
    sides = (method, "trees")
    metrics = [f"{METRICS[task][metric]} {side}" for metric in COMPARED[task] for side in sides]
    table = new_table(title, ["trees", "party", "rows", *metrics, "seconds", "masks"])
    for line in comparison.lines:
        values = [
            _figure(of, metric)
            for metric in COMPARED[task]
            for of in (line.model_metrics, line.metrics)
        ]
        seconds = f"{line.seconds:.1f}"
        table.add_row(line.way, line.party, str(line.rows), *values, seconds, line.masks)
    print_table(table)
    print(
        f"{method} trained for {comparison.model_seconds:.1f} s. Seconds of trees are of two fits, "
        "with and without random masks; the validation rows choose. `local` is compared with mode "
        "local, the others with mode collaborative."
    )


def _figure(metrics: Mapping[str, float] | None, metric: str) -> str:
    """Write a metric; errors in the units of a label have four digits."""
    if not metrics:
        return "n/a"
    return f"{metrics[metric]:.4g}" if metric in ("rmse", "mae") else f"{metrics[metric]:.3f}"


def print_explanation(name: str, explanation: "Explanation") -> None:
    """Print the worth of each party, and its most important features."""
    metric, together = explanation.metric_name, explanation.together
    title = (
        f"{name}: {metric} of {explanation.n_rows} rows; {explanation.nobody:.3f} without parties"
    )
    columns = ["alone", "all but it", "it adds", "Shapley value", "95 % interval", "share"]
    table = new_table(title, ["party", "rows", *columns])
    for each in explanation.worth:
        worth = each.shapley
        values = (each.alone.value, each.without.value, each.adds.value, worth.value)
        interval = f"{worth.low:.3f} to {worth.high:.3f}"
        share = "n/a" if each.share is None else f"{100 * each.share.value:.0f} %"
        figures = [f"{value:.3f}" for value in values]
        table.add_row(each.party, str(each.rows), *figures, interval, share)
    table.add_row("all", str(explanation.n_rows), f"{together.value:.3f}")
    print_table(table)
    if explanation.importances:
        table = new_table("most important features", ["party", "feature", "importance"])
        for feature in explanation.importances[:SHOWN_FEATURES]:
            worth = feature.importance
            interval = f"{worth.value:.3f} ({worth.low:.3f} to {worth.high:.3f})"
            table.add_row(feature.party, feature.feature, interval)
        print_table(table)
    if undefined := explanation.undefined_completion:
        print(undefined)
    elif effect := explanation.completion:
        print(
            f"completion changes {metric} of {effect.rows} rows with a gap from "
            f"{effect.observed.value:.3f} to {effect.completed.value:.3f}"
        )


def new_table(title: str, columns: list[str]) -> Table:
    """Make a table with names on the left and numbers on the right."""
    table = Table(title=title)
    for column in columns:
        table.add_column(
            column, justify="left" if column in ("mode", "trees", "party") else "right"
        )
    return table


def print_table(table: Table) -> None:
    """Print a table, 110 columns wide unless standard output is a terminal.

    Texts are shown as they are: without markup, and with escapes for what a terminal could act on.
    """
    width = None if sys.stdout.isatty() else 110
    Console(width=width, markup=False, emoji=False).print(_PrintableTable(table))


class _PrintableTable:
    """A table whose rendered texts are printable."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self._table, options):
            lines = segment.text.split("\n")
            yield Segment("\n".join(map(printable, lines)), segment.style, segment.control)
