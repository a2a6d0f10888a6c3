"""The commands `xvfl-lab data list`, `get` and `prepare`."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

app = typer.Typer(
    help="Data sets of the experiments: list, download and prepare them.", no_args_is_help=True
)

WIDE = 160
"""Width in characters of a table that is written to a file or a pipe."""


@app.command(name="list")
def list_all(
    data: Annotated[
        Path | None, typer.Option(help="Folder to search; by default XVFL_DATA and the cache.")
    ] = None,
) -> None:
    """List the data sets, where they are, and how to get them.

    xvfl-lab data list
    """
    from xvfl_lab.datasets import DATASETS, data_set, find
    from xvfl_lab.datasets.source import data_folders

    searched = ", ".join(str(folder) for folder in data_folders(data))
    columns = (
        "name",
        "rows",
        "local files",
        "download size",
        "license",
        "checksum",
        "how to get it",
    )
    table = Table(*columns, title=f"data sets in {searched}", show_lines=True)
    for name in DATASETS:
        each, files = data_set(name), find(name, data)
        local = "no" if files is None else f"{files.paths[0].name}, {_size(files.size())}"
        how = f"xvfl-lab data get {name}" if each.downloads else f"manually: {each.page}"
        sums = _checksums([download.checksum for download in each.downloads])
        table.add_row(name, f"{each.rows:,}", local, _size(each.size), each.license, sums, how)
    console = Console(width=None if sys.stdout.isatty() else WIDE)
    console.print(table)
    console.print("`xvfl-lab data get NAME` downloads one or explains how; see docs/datasets.md.")


@app.command()
def get(
    name: Annotated[str, typer.Argument(help="A data set of `xvfl-lab data list`.")],
    to: Annotated[
        Path | None, typer.Option(help="Data folder; by default in the user's cache.")
    ] = None,
) -> None:
    """Download a data set; resumes an interrupted download.

    xvfl-lab data get bank
    """
    from xvfl.errors import InputError
    from xvfl_lab.datasets import data_set
    from xvfl_lab.datasets.download import fetch
    from xvfl_lab.datasets.source import download_folder

    each = data_set(name)
    if not each.downloads:
        raise InputError(f"data set {name!r}: {each.instructions} ({each.page})")
    folder = to or download_folder()
    print(f"{each.title}; license: {each.license}; {each.page}")
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        for download in each.downloads:
            line = bar.add_task(Path(download.file).name, total=download.size)

            def show(done: int, total: int | None, line: Any = line) -> None:
                bar.update(line, completed=done, total=total)

            fetch(download, folder, show)
            bar.update(line, completed=download.size, total=download.size)
    where = f" --data {folder}" if to else ""
    print(f"{name} is in {folder / name}; next: xvfl-lab data prepare {name}{where}")


@app.command()
def prepare(
    name: Annotated[str, typer.Argument(help="A data set of `xvfl-lab data list`.")],
    parties: Annotated[int, typer.Option(help="Number of parties.")] = 2,
    out: Annotated[Path | None, typer.Option(help="Also write it to this .npz file.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder with its files; by default XVFL_DATA and the cache.")
    ] = None,
) -> None:
    """Encode a data set, split it over parties and cache it.

    xvfl-lab data prepare physionet2012 --parties 4 --out physionet.npz
    """
    from xvfl_lab.datasets import prepare as prepare_task
    from xvfl_lab.task import save_task

    task = prepare_task(name, parties, data)
    assert task.test is not None
    print(f"{name}: {len(task):,} rows, {task.classes} classes, {task.test.sum():,} test rows")
    for party, layout in task.layouts.items():
        missing = 1 - task.observed_at(party).mean()
        print(f"  {party}: {layout.raw} features, {100 * missing:.1f} % of cells naturally missing")
    if out is not None:
        save_task(task, out)
        print(f"wrote {out}")


def _size(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB"


def _checksums(checksums: Sequence[str]) -> str:
    if not checksums:
        return "none published"
    kind, _, digest = checksums[0].partition(":")
    return f"{kind} {digest[:12]}…" if len(checksums) == 1 else f"{kind} of {len(checksums)} files"
