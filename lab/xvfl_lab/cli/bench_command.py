"""`xvfl-lab bench`: the time of a training step on this machine."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table


def bench(
    sections: Annotated[
        list[str] | None,
        typer.Argument(
            help="paper, public, parties, growth, memory; on a GPU agreement, gpu, images; by "
            "default all of these. fit: a fit of Bank against version 0.1.0; big: tables larger "
            "than memory; grid: all runs of three tables."
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Tiny shapes: seconds, to check that it runs.")
    ] = False,
    out: Annotated[Path, typer.Option(help="JSON file of the results.")] = Path("out/bench.json"),
    results: Annotated[
        Path | None,
        typer.Option(help="grid: folder of runs to compare with; default lab/results/runs."),
    ] = None,
) -> None:
    """Time a training step against a plain PyTorch implementation and against a lower bound.

    Contenders take turns in one process, and ratios are medians over the turns. Compare ratios:
    absolute times vary on shared machines.

    xvfl-lab bench paper public
    """
    from xvfl_lab.bench.run import bench as run

    console = Console()

    def show(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        table = Table(*header)
        for row in rows:
            table.add_row(*row)
        console.print(table)

    with console.status("timing"):
        run(sections or [], quick, out, show, results=results)
    console.print(f"wrote {out}")
