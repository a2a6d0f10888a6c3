"""The commands `xvfl data list`, `get` and `prepare`."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

app = typer.Typer(
    help="Data sets of the experiments: what is here, how to get the rest, prepared files.",
    no_args_is_help=True,
)

WIDE = 160
"""Columns of a table that goes to a file or a pipe."""


@app.command(name="list")
def list_all(
    data: Annotated[
        Path | None, typer.Option(help="Folder to look in; by default XVFL_DATA and the cache.")
    ] = None,
) -> None:
    """Show which data sets are here, and how to get the others.

    xvfl data list
    """
    from xvfl_lab.datasets import DATASETS, data_set, find
    from xvfl_lab.datasets.source import data_folders

    looked = ", ".join(str(folder) for folder in data_folders(data))
    table = Table(title=f"data sets in {looked}", show_lines=True)
    for column in ("name", "rows", "here", "publisher's", "licence", "checksum", "to get it"):
        table.add_column(column)
    for name in DATASETS:
        each, found = data_set(name), find(name, data)
        here = "no" if found is None else f"{found.files[0].name}, {_size(found.size())}"
        how = f"xvfl data get {name}" if each.downloads else f"by hand: {each.page}"
        sums = _checksums([download.checksum for download in each.downloads])
        table.add_row(name, f"{each.rows:,}", here, _size(each.size), each.licence, sums, how)
    console = Console(width=None if sys.stdout.isatty() else WIDE)
    console.print(table)
    console.print("`xvfl data get NAME` also says what to do by hand. docs/datasets.md has it all.")


@app.command()
def get(
    name: Annotated[str, typer.Argument(help="A data set; `xvfl data list` shows them.")],
    to: Annotated[
        Path | None, typer.Option(help="Data folder; by default one in the user's cache.")
    ] = None,
) -> None:
    """Download a data set, going on where an earlier attempt stopped.

    xvfl data get bank
    """
    from xvfl.errors import InputError
    from xvfl_lab.datasets import data_set
    from xvfl_lab.datasets.download import fetch
    from xvfl_lab.datasets.source import downloaded

    each = data_set(name)
    if not each.downloads:
        raise InputError(f"data set {name!r}: {each.account} ({each.page})")
    folder = to or downloaded()
    print(f"{each.title}; licence: {each.licence}; {each.page}")
    with _bar() as bar:
        for download in each.downloads:
            line = bar.add_task(Path(download.file).name, total=download.size)

            def show(done: int, total: int | None, line: Any = line) -> None:
                bar.update(line, completed=done, total=total)

            fetch(download, folder, show)
            bar.update(line, completed=download.size, total=download.size)
    where = f" --data {folder}" if to else ""
    print(f"{name} is in {folder / name}; next: xvfl data prepare {name}{where}")


@app.command()
def prepare(
    name: Annotated[str, typer.Argument(help="A data set; `xvfl data list` shows them.")],
    parties: Annotated[int, typer.Option(help="Split over this many parties.")] = 2,
    out: Annotated[
        Path | None, typer.Option(help="Also write it to this .npz, to take elsewhere.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder with its files; by default XVFL_DATA and the cache.")
    ] = None,
) -> None:
    """Encode a data set, split it over parties and keep it in the cache.

    xvfl data prepare physionet2012 --parties 4 --out physionet.npz
    """
    from xvfl_lab.datasets import prepare as prepare_task
    from xvfl_lab.task import save_task

    task = prepare_task(name, parties, data)
    assert task.test is not None
    print(f"{name}: {len(task):,} rows, {task.classes} classes, {task.test.sum():,} test rows")
    for party, layout in task.layouts.items():
        gaps = 1 - task.seen(party).mean()
        print(f"  {party}: {layout.raw} features, {100 * gaps:.1f} % of cells missing by nature")
    if out is not None:
        save_task(task, out)
        print(f"wrote {out}")


def _bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    return Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True))


def _size(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB"


def _checksums(known: Sequence[str]) -> str:
    if not known:
        return "none published"
    kind, _, digest = known[0].partition(":")
    return f"{kind} {digest[:12]}…" if len(known) == 1 else f"{kind} of {len(known)} files"
