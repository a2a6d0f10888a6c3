"""Progress bars for training and prediction, shown in a terminal or a notebook."""

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from xvfl.dataset.overlap import COLUMNS, Overlap
from xvfl.model.fitting import ProgressCallback, ProgressUpdate


def is_interactive() -> bool:
    """Return whether standard error is a terminal, or this is a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


def overlap_table(overlap: Overlap) -> Table:
    """Make a table of the rows of each party: all, shared, labeled and full."""
    table = Table("party", title="rows by party")
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for name, counts in overlap.items():
        table.add_row(name, *(f"{counts[column]:,}" for column in COLUMNS))
    return table


def show_overlap(overlap: Overlap, verbose: bool | Literal["auto"]) -> None:
    """Print the rows of each party on standard error, where a progress bar would be shown."""
    if verbose is True or (verbose == "auto" and is_interactive()):
        Console(stderr=True).print(overlap_table(overlap))


@contextmanager
def progress_bar(
    verbose: bool | Literal["auto"], console: Console | None = None
) -> Iterator[ProgressCallback]:
    """Show epochs, loss and validation score during training."""
    if verbose is False or (verbose == "auto" and not is_interactive()):
        yield lambda update: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[status]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console or Console(stderr=True)) as bar:
        task = bar.add_task("training", total=None, status="")

        def show(update: ProgressUpdate) -> None:
            record, progress = update.record, update.record.progress
            done = progress.epoch + progress.batch / update.batches
            label = f"training {update.label}".strip()
            bar.update(task, completed=round(done, 1), total=update.epochs, description=label)
            if record.kind == "epoch":
                loss = sum(v for k, v in record.values.items() if k != "score")
                score, best = record.values["score"], progress.best_epoch + 1
                scored = f"validation log-loss {-score:.3f} (best: epoch {best})"
                pretraining = math.isnan(score) and not best
                status = "pretraining" if pretraining else f"loss {loss:.3f}  {scored}"
                bar.update(task, status=status)

        yield show


@contextmanager
def row_bar() -> Iterator[Callable[[int, int], None]]:
    """Show the number of predicted rows and the remaining time."""
    if not is_interactive():
        yield lambda done, total: None
        return
    columns = (TextColumn("predicting"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("rows", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def work_bar(
    name: str, verbose: bool | Literal["auto"] = "auto"
) -> Iterator[Callable[[str, float], None]]:
    """Show what is being computed, and the finished share."""
    if verbose is False or (verbose == "auto" and not is_interactive()):
        yield lambda text, share: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(name, total=1.0)

        def show(text: str, share: float) -> None:
            bar.update(task, description=f"{name}: {text}", completed=share)

        yield show
