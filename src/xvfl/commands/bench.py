"""`xvfl bench`: what a step costs on this machine."""

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
            help="paper, public, parties, growth, memory; on a GPU agreement, gpu, images; none = "
            "all of these. big: tables larger than memory."
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Tiny shapes: seconds, to see that it runs.")
    ] = False,
    out: Annotated[Path, typer.Option(help="File of the figures.")] = Path("out/bench.json"),
) -> None:
    """Time a training step beside a plain PyTorch writing of the same loss and beside its floor.

    Contenders take turns in one process, and ratios are medians over the turns: compare those, for
    absolute times mean little on shared machines.

    xvfl bench paper public
    """
    from xvfl.bench.outcome import CLAIMS, LINES, Outcome
    from xvfl.bench.run import bench as run

    console = Console()

    def show(section: str, one: Outcome) -> None:
        console.print(_table(LINES, [line.cells() for line in one.lines]))

    with console.status("timing; contenders take turns"):
        found = run(sections or [], quick, show)
    found.write(out)
    if found.claims:
        console.print(_table(CLAIMS, [claim.cells() for claim in found.claims]))
    console.print(f"wrote {out}")


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(*header)
    for row in rows:
        table.add_row(*row)
    return table
