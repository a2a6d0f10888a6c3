"""Progress of long steps: a bar of one line in a terminal or a notebook, else plain lines.

All times are estimates. Training may stop before its last epoch.
"""

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column, Table
from rich.text import Text

from xvfl.dataset.overlap import COLUMNS, Overlap
from xvfl.model.fit_report import FitReport
from xvfl.model.fitting import ProgressCallback, ProgressUpdate
from xvfl.system.report import Report, no_report

Verbose = bool | None
"""Show progress always, never, or only in a terminal or a notebook."""
BAR_ALONE: tuple[object, ...] = (None, "auto")
"""Values for "only in a terminal or a notebook"; version 0.3 wrote `auto`."""
LINE_SECONDS = 10.0
"""Least time between two plain lines."""


def is_interactive() -> bool:
    """Return whether standard error is a terminal, or this is a notebook."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return sys.stderr.isatty() or hasattr(shell, "kernel")


def overlap_table(overlap: Overlap) -> Table:
    """Make a table of the rows of each party: all, shared, labeled and full."""
    table = Table("party", title="rows by party")
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for name, counts in overlap.items():
        table.add_row(name, *(f"{counts[column]:,}" for column in COLUMNS))
    return table


def show_overlap(overlap: Overlap, verbose: Verbose) -> None:
    """Print the rows of each party on standard error, where a progress bar would be shown."""
    if verbose is True or (verbose in BAR_ALONE and is_interactive()):
        Console(stderr=True).print(overlap_table(overlap))


def show_report(report: FitReport, verbose: Verbose) -> None:
    """Print what a training did on standard error, where a progress bar would be shown."""
    if verbose is True or (verbose in BAR_ALONE and is_interactive()):
        print(report, file=sys.stderr)


@contextmanager
def work_bar(
    name: str,
    verbose: Verbose = True,
    console: Console | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Report]:
    """Show what is being computed, the finished share, and the remaining time."""
    if verbose is False or (verbose in BAR_ALONE and not is_interactive()):
        yield no_report
    elif is_interactive() or (console is not None and console.is_terminal):
        with _work_line(name, console or Console(stderr=True)) as report:
            yield report
    else:
        yield _PlainLines(name, console or Console(stderr=True, width=80), clock).report


@contextmanager
def progress_bar(
    verbose: Verbose,
    console: Console | None = None,
    summary: bool = True,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[ProgressCallback]:
    """Show epochs, validation score and remaining time of a training.

    With `summary`, the last line tells at which epoch training ended and which one is kept.
    """
    last: list[ProgressUpdate] = []
    with work_bar("training", verbose, console, clock) as report:

        def show(update: ProgressUpdate) -> None:
            if update.record.kind == "epoch" and not update.label:
                last[:] = [update]
            scored = last[0] if last and not update.label else None
            progress = update.record.progress
            done = (progress.epoch + progress.batch / update.batches) / update.epochs
            epoch = min(math.floor(done * update.epochs) + 1, update.epochs)
            parts = [update.label, f"epoch {epoch}/{update.epochs}", score_text(scored)]
            report(", ".join(part for part in parts if part), done)

        yield show
    if summary and last and (verbose is True or (verbose in BAR_ALONE and is_interactive())):
        (console or Console(stderr=True)).print(f"training: {end_text(last[0])}", highlight=False)


def score_text(update: ProgressUpdate | None) -> str:
    """Write the last validation score, and the best one unless the first epochs still go on."""
    if update is None:
        return ""
    score, progress = update.record.values["score"], update.record.progress
    if math.isnan(score) and progress.best_epoch < 0:
        return "pretraining"
    text = f"{update.score_name} {-score:.3f}"
    if not math.isfinite(progress.best_score):
        return text
    return f"{text}, best {-progress.best_score:.3f} at {progress.best_epoch + 1}"


def end_text(update: ProgressUpdate) -> str:
    """Write at which epoch training ended, and the best epoch, whose weights are kept."""
    progress, best = update.record.progress, update.record.progress.best_score
    score = best if math.isfinite(best) else update.record.values["score"]
    return epochs_text(
        progress.epoch,
        update.epochs,
        progress.best_epoch + 1,
        f"validation {update.score_name} {-score:.4f}",
    )


def epochs_text(trained: int, epochs: int, best: int, score: str) -> str:
    """Write the number of trained epochs, the best one and its score."""
    ended = f"stopped early at {trained}" if trained < epochs else f"trained {trained} epochs"
    return f"{ended}, best {best} ({score})"


class _PlainLines:
    """Prints a line on progress from time to time."""

    def __init__(self, name: str, console: Console, clock: Callable[[], float]) -> None:
        self.name, self.console, self.clock = name, console, clock
        self.started = self.printed = clock()

    def report(self, text: str, share: float) -> None:
        """Print a line, unless the last one is recent."""
        now = self.clock()
        if now - self.printed < LINE_SECONDS:
            return
        self.printed = now
        times = times_text(now - self.started, share)
        line = f"{self.name}: {text}, {share:.0%}, {times}" if text else f"{self.name}: {times}"
        self.console.print(line, highlight=False, soft_wrap=True)


def times_text(elapsed: float, share: float) -> str:
    """Write the elapsed time, and the remaining time if it can be estimated."""
    if not 0 < share < 1:
        return _duration(elapsed)
    return f"{_duration(elapsed)}, {_duration(elapsed * (1 - share) / share)} left"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class _TimesColumn(ProgressColumn):
    """Elapsed and remaining time."""

    def render(self, task: Task) -> Text:
        return Text(times_text(task.elapsed or 0.0, task.percentage / 100), no_wrap=True)


@contextmanager
def _work_line(name: str, console: Console) -> Iterator[Report]:
    """Show a bar of one line; the text is cut if the console is narrow."""
    columns = (
        TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis")),
        BarColumn(bar_width=12),
        _TimesColumn(table_column=Column(no_wrap=True)),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(name, total=1.0)

        def show(text: str, share: float) -> None:
            description = f"{name}: {text}" if text else name
            bar.update(task, description=description, completed=share)

        yield show
