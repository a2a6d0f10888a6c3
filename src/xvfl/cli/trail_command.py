"""`xvfl trail`: show and verify the hash-chained record of a side, and export its newest entry."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from xvfl.cli.extras import require_extra
from xvfl.cli.output import print_error, print_line, print_table
from xvfl.errors import InputError
from xvfl.system.event_log import format_event
from xvfl.system.printable import printable

app = typer.Typer(
    help="Show and verify the trail: a hash-chained record of matches, uploads, releases, "
    "approvals, withdrawals and refusals, in the state folder of each side.\n\nNone of these "
    "commands changes anything, and none needs a running process.",
    no_args_is_help=True,
)
Where = Annotated[
    Path,
    typer.Argument(
        metavar="CONFIG|FOLDER",
        help="A configuration of a coordinator or a party, or its state folder.",
    ),
]


@app.command()
def verify(
    where: Where,
    peer: Annotated[
        Path | None,
        typer.Option(help="A file that the other side wrote with `xvfl trail export`."),
    ] = None,
) -> None:
    """Verify that no entry was changed, removed or moved; exit code 1 if one was.

    Entries that were cut off the end are found by what the other side has recorded: with --peer,
    and by the running processes, which log `trail_differs`.

    xvfl trail verify bank.toml

    xvfl trail verify bank.toml --peer coordinator.entries
    """
    from xvfl.trail.verify import (
        compare_peer,
        compare_recorded,
        read_newest,
        read_trail,
        verify_trail,
    )

    folder = _folder(where)
    found = verify_trail(read_trail(folder))
    newest = None if peer is None else read_newest(peer)
    problems = found.problems or compare_recorded(found)
    if newest is not None and not found.problems:
        problems = [*problems, *compare_peer(found, newest)]
    for text in found.notes:
        print_line(f"note: {text}")
    for text in problems:
        print_error(f"{folder}: {text}")
    if problems:
        raise typer.Exit(1)
    print_line(f"{folder}: {len(found.entries)} entries, none changed, removed or moved")
    for name, records in found.recorded().items():
        entry, _, acknowledged = records[-1]
        print_line(f"{name} has acknowledged entry {acknowledged.number} at {entry['time']}")
    if newest is not None:
        print_line(f"it has all entries that {newest['side']} has recorded")


@app.command()
def show(
    where: Where,
    last: Annotated[int, typer.Option(help="Show the last N entries; 0: all.", min=0)] = 50,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
) -> None:
    """Show the entries: number, time, event, who ran the process, and facts.

    Entries after a problem are not shown; `xvfl trail verify` names it.

    xvfl trail show bank.toml --last 20
    """
    from xvfl.trail.verify import read_trail, verify_trail

    folder = _folder(where)
    found = verify_trail(read_trail(folder))
    entries = found.entries[-last:]
    if as_json:
        for each in entries:
            print(json.dumps(each))
    else:
        table = Table(title=f"trail in {folder}")
        for column in ("entry", "time (UTC)", "event", "by", "facts"):
            table.add_column(column, overflow="fold")
        for each in entries:
            time = each["time"][:19].replace("T", " ")
            facts = format_event({"event": "", **each["facts"]}).strip()
            cells = (str(each["number"]), time, each["event"], each["by"], facts)
            table.add_row(*map(printable, cells))
        print_table(table)
    for text in found.problems:
        print_error(f"{folder}: {text}")
    if found.problems:
        raise typer.Exit(1)


@app.command()
def export(
    where: Where,
    out: Annotated[Path | None, typer.Option(help="Write to this file.")] = None,
) -> None:
    """Export this side's newest entry and those that it has recorded of others.

    The other side compares its trail with them (`xvfl trail verify --peer`). The file holds
    numbers, times and hashes only.

    xvfl trail export coordinator.toml --out coordinator.entries
    """
    from xvfl.trail.verify import describe_newest, read_trail, verify_trail

    folder = _folder(where)
    found = verify_trail(read_trail(folder))
    if found.problems:
        raise InputError(f"{folder}: {found.problems[0]}; run `xvfl trail verify`")
    text = json.dumps(describe_newest(found), indent=1)
    if out is None:
        print(text)
        return
    out.write_text(text + "\n", encoding="utf-8")
    print_line(f"wrote {out}; the other side: xvfl trail verify CONFIG --peer {out.name}")


def _folder(where: Path) -> Path:
    if where.is_dir():
        return where
    with require_extra("federated"):
        from xvfl.service.config import load_config

    return Path(load_config(where).state_dir)
