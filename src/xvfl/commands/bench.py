"""`xvfl bench`: what a step costs on this machine."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table


def bench(
    sections: Annotated[
        list[str] | None,
        typer.Argument(help="paper, public, parties, growth, memory, gpu, images; none = all."),
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
    from xvfl.bench.outcome import CLAIMS, LINES
    from xvfl.bench.run import bench as run

    console = Console()
    with console.status("timing") as status:
        found = run(sections or [], quick, lambda name: status.update(f"timing {name}"))
    found.write(out)
    for header, rows in ((LINES, found.lines), (CLAIMS, found.claims)):
        if not rows:
            continue
        table = Table(*header)
        for row in rows:
            table.add_row(*row.cells())
        console.print(table)
    console.print(f"wrote {out}")
