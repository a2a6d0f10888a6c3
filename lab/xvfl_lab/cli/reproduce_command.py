"""`xvfl-lab reproduce`: the paper's figures."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from xvfl.errors import ConfigError


def reproduce(
    figure: Annotated[
        str | None, typer.Argument(help="Name of a figure, or `report` for pages of all figures.")
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="Name of the data set.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Few rows and epochs: minutes on a CPU.")
    ] = False,
    listed: Annotated[bool, typer.Option("--list", help="List the figures.")] = False,
    out: Annotated[Path, typer.Option(help="Folder of runs and figures.")] = Path("out/reproduce"),
    pages: Annotated[
        Path | None, typer.Option(help="report: folder of the pages; by default OUT/pages.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    workers: Annotated[int, typer.Option(help="Processes on a CPU; 0 = one per core.", min=0)] = 0,
    ray: Annotated[
        str | None, typer.Option(help="Compute on the Ray cluster at this address, or `auto`.")
    ] = None,
) -> None:
    """Compute a figure of the paper on a data set: all methods, all modes, paired differences.

    Results are stored in --out as they finish: after an interruption the same command continues,
    and a run that several figures share is computed once.

    xvfl-lab reproduce missing-rates --dataset bank --quick
    """
    console = Console()
    if listed:
        console.print(_list())
        return
    if figure is None:
        raise ConfigError("reproduce: expected a figure; `xvfl-lab reproduce --list` lists them")
    from xvfl_lab.experiments import reproduce as work
    from xvfl_lab.experiments.figures import FIGURES

    if figure == "report":
        from xvfl_lab.experiments.results_pages import write_pages

        console.print(f"wrote {write_pages(out, pages or out / 'pages')}")
        return
    device = work.choose_device(device)
    if figure in work.SPECIAL:
        if dataset is not None:
            raise ConfigError(f"reproduce {figure}: has its own data; leave out --dataset")
        work.require_writable(out)
        written = work.reproduce_special(figure, quick, out, device, console.print)
    else:
        if dataset is None and figure in FIGURES:
            raise ConfigError(
                f"reproduce {figure}: expected --dataset; `xvfl-lab data list` lists the data sets"
            )
        request = work.Request(figure, dataset or "", quick, out, device, workers, ray)
        total = len(request.jobs())
        work.require_writable(out)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, TimeRemainingColumn(), console=console) as bar:
            task = bar.add_task("runs", total=total)

            def on_progress(count: int, of: int, name: str) -> None:
                bar.update(task, completed=count, description=name)

            try:
                written = work.reproduce(request, on_progress)
            except KeyboardInterrupt:
                console.print("stopped; run the same command to continue")
                raise
    for path in written:
        console.print(f"wrote {path}")


def _list() -> Table:
    from xvfl_lab.experiments.figures import FIGURES
    from xvfl_lab.experiments.reproduce import SPECIAL

    table = Table(title="figures")
    table.add_column("name", no_wrap=True)
    table.add_column("content")
    for name, jobs in FIGURES.items():
        table.add_row(name, (jobs.__doc__ or "").strip())
    for name, figure in SPECIAL.items():
        table.add_row(name, figure.caption)
    table.add_row(
        "report", "Pages of all complete figures, and the verdicts on the paper's claims."
    )
    return table
