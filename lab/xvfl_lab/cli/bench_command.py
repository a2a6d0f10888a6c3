"""`xvfl bench`: what a step costs on this machine."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table


def bench(
    sections: Annotated[
        list[str] | None,
        typer.Argument(
            help="paper, public, parties, growth, memory; on a GPU agreement, gpu, images; none = "
            "all of these. big: tables larger than memory; grid: every run of three real tables."
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Tiny shapes: seconds, to see that it runs.")
    ] = False,
    out: Annotated[Path, typer.Option(help="File of the figures.")] = Path("out/bench.json"),
    results: Annotated[
        Path | None,
        typer.Option(help="grid: folder of published runs to compare with; results/runs if there."),
    ] = None,
) -> None:
    """Time a training step beside a plain PyTorch writing of the same loss and beside its floor.

    Contenders take turns in one process, and ratios are medians over the turns: compare those, for
    absolute times mean little on shared machines.

    xvfl bench paper public
    """
    from xvfl_lab.bench.grid import published
    from xvfl_lab.bench.outcome import CLAIMS, LINES, Outcome
    from xvfl_lab.bench.run import bench as run
    from xvfl_lab.bench.sections import FULL, QUICK

    console = Console()

    def show(one: Outcome) -> None:
        console.print(_table(LINES, [line.cells() for line in one.lines]))

    with console.status("timing; contenders take turns"):
        plan = replace(QUICK if quick else FULL, results=published(results, quick))
        found = run(sections or [], plan, out, show)
    if found.claims:
        console.print(_table(CLAIMS, [claim.cells() for claim in found.claims]))
    console.print(f"wrote {out}")


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(*header)
    for row in rows:
        table.add_row(*row)
    return table
