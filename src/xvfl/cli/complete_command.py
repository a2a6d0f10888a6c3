"""`xvfl complete`: fill the missing cells of tables."""

from pathlib import Path
from typing import Annotated

import typer

from xvfl.cli.runs import name_tables


def complete(
    run: Annotated[
        Path,
        typer.Argument(
            help="A finished run folder, or a party's state folder with a released head."
        ),
    ],
    tables: Annotated[
        list[str], typer.Argument(help="A party and its table, NAME=TABLE, for each party.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the completed tables.")],
    party: Annotated[
        list[str] | None,
        typer.Option(help="Complete only the table of this party; may be repeated."),
    ] = None,
    level: Annotated[
        float, typer.Option(help="Share of the true values that the intervals hold.")
    ] = 0.8,
    draws: Annotated[
        int, typer.Option(help="Number of tables to draw from the distributions.", min=0)
    ] = 0,
    format: Annotated[str, typer.Option(help="csv or parquet.")] = "csv",
    id: Annotated[
        str | None, typer.Option(help="Name of the id column, if it differs from training.")
    ] = None,
) -> None:
    """Fill the missing cells of tables, and say how certain each value is.

    Writes for each party: NAME.csv, the completed table; NAME.cells.csv, one line per filled cell
    with its value, its interval (numbers, dates, durations) or the probability of the value
    (categories), and what it was completed from; with --draws, NAME.draw1.csv and so on, tables
    whose filled cells are drawn at random from these distributions. Observed cells stay as they
    are.

    xvfl complete RUN bank=bank.csv shop=shop.parquet --out completed
    """
    from xvfl.model.complete_run import CompleteOptions, complete_run
    from xvfl.model.progress import work_bar
    from xvfl.model.run_dir import RunDir

    options = CompleteOptions(tuple(party or ()), level, draws, id, format)
    with work_bar("completing") as report:
        files = complete_run(RunDir(run), name_tables(tables), out, options, report)
    for each in files:
        names = ", ".join(path.name for path in each.paths)
        print(f"{each.party}: filled {each.cells:,} cells in {each.rows:,} rows; wrote {names}")
