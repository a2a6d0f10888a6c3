"""`xvfl reproduce`: the paper's figures, run again."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from xvfl.errors import ConfigError

if TYPE_CHECKING:
    from xvfl_lab.experiments.reproduce import Request


def reproduce(
    figure: Annotated[
        str | None, typer.Argument(help="Name of the figure; `report` writes one page of all.")
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="Name of the data set.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A first look: few rows and epochs, minutes on a CPU.")
    ] = False,
    listed: Annotated[bool, typer.Option("--list", help="List the figures.")] = False,
    out: Annotated[Path, typer.Option(help="Folder of runs and figures.")] = Path("out/reproduce"),
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    workers: Annotated[int, typer.Option(help="Processes on a CPU; 0 = one a core.", min=0)] = 0,
    ray: Annotated[
        str | None,
        typer.Option(help="Hand the runs to the Ray cluster at this address; auto = this one's."),
    ] = None,
) -> None:
    """Make a figure of the paper on a data set: all methods, all modes, paired differences.

    Runs are kept in --out as they come: a command stopped and given again goes on where it was, and
    runs that several figures share are made once.

    xvfl reproduce missing-rates --dataset bank --quick
    """
    console = Console()
    if listed:
        console.print(_list())
        return
    if figure is None:
        raise ConfigError("reproduce: expected a figure; `xvfl reproduce --list` shows them")
    from xvfl_lab.experiments.jobs import FIGURES
    from xvfl_lab.experiments.reproduce import SPECIAL, Request, reproduce_special, usable

    if figure == "report":
        from xvfl_lab.experiments.results_page import write_page

        console.print(f"wrote {write_page(out)}")
        return
    _check_device(device)
    if figure in SPECIAL:
        if dataset is not None:
            raise ConfigError(f"reproduce {figure}: has its own data; leave out --dataset")
        usable(out)
        for path in reproduce_special(figure, quick, out, device, console.print):
            console.print(f"wrote {path}")
        return
    if dataset is None and figure in FIGURES:
        raise ConfigError(f"reproduce {figure}: expected --dataset; `xvfl data list` shows them")
    request = Request(figure, dataset or "", quick, out, device, workers, ray)
    _make(request, console)


def _check_device(device: str) -> None:
    if device not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"--device: expected auto, cpu or cuda, got {device!r}")
    if device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise ConfigError("--device: no CUDA device is here; leave it out, or say cpu")


def _make(request: "Request", console: Console) -> None:
    from xvfl_lab.experiments.reproduce import reproduce, usable

    total = len(request.jobs())
    usable(request.out)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task("runs", total=total)

        def done(count: int, of: int, what: str) -> None:
            bar.update(task, completed=count, description=what)

        try:
            written = reproduce(request, done)
        except KeyboardInterrupt:
            console.print("stopped; the same command goes on from here")
            raise
    for path in written:
        console.print(f"wrote {path}")


def _list() -> Table:
    from xvfl_lab.experiments.jobs import FIGURES
    from xvfl_lab.experiments.reproduce import SPECIAL

    table = Table(title="figures")
    table.add_column("name", no_wrap=True)
    table.add_column("what it shows")
    for name, jobs in FIGURES.items():
        table.add_row(name, (jobs.__doc__ or "").strip())
    for name, (_, _, shows) in SPECIAL.items():
        table.add_row(name, shows)
    table.add_row("report", "One page, RESULTS.md, of all figures that are there.")
    return table
