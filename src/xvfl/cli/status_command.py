"""`xvfl status`."""

import json
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.error import URLError
from urllib.request import urlopen

import typer
from rich.table import Column, Table

from xvfl.cli.output import print_table
from xvfl.errors import RunError
from xvfl.service.addresses import parse_address

STATUS_TIMEOUT_S = 10
LISTS = {
    "approvals": ("number", "kind", "reason", "asked"),
    "heads": ("number", "state", "digest", "encoders", "epoch", "best_score", "ended", "problems"),
    "uploads": (
        "version",
        "part",
        "rows",
        "appended",
        "replaced",
        "bytes",
        "created",
        "left",
        "withdrawn",
    ),
    "receipts": ("time", "rows", "version", "everything", "heads"),
}
"""Lists in the details of a status, and the columns that are shown."""
SHARES = ("progress", "received")
"""Ends of the names of numbers that are shares."""


def status(
    address: Annotated[
        str, typer.Argument(help="`status_address` of a coordinator or party, HOST:PORT.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the status of a running coordinator or party: state, uploads, heads.

    A browser shows the same at http://HOST:PORT/.

    xvfl status localhost:7480
    """
    values = _request_status(address)
    if as_json:
        print(json.dumps(values))
        return
    details = {"approvals": values.pop("approvals", []), **values.pop("details", {})}
    by_party = {name: each for name, each in values.items() if name.startswith("party_")}
    table = Table("", Column(justify="right"), title=f"{values.get('side')} at {address}")
    for name, value in values.items():
        if name not in by_party and value not in ("", None, {}):
            table.add_row(name.replace("_", " "), _text(name, value))
    print_table(table)
    if by_party:
        print_table(_party_table(by_party))
    for name, columns in LISTS.items():
        if lines := details.get(name):
            table = Table(*(column.replace("_", " ") for column in columns), title=name)
            for line in lines:
                table.add_row(*(_text(column, line.get(column)) for column in columns))
            print_table(table)


def _party_table(values: Mapping[str, Mapping[str, Any]]) -> Table:
    """Make a table with a column for each party."""
    parties = list(dict.fromkeys(party for each in values.values() for party in each))
    table = Table("", *(Column(party, justify="right") for party in parties), title="parties")
    for name, each in values.items():
        if each:
            label = name.removeprefix("party_").replace("_", " ")
            table.add_row(label, *(_text(name, each.get(party)) for party in parties))
    return table


def _text(name: str, value: object) -> str:
    """Write a value; shares in percent, large numbers with separators."""
    if value is None or value == "":
        return "–"
    if name == "digest":
        return str(value)[:8]
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {each}" for key, each in value.items()) or "–"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "–"
    if isinstance(value, int | float) and name.endswith(SHARES):
        return f"{value:.0%}"
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _request_status(address: str) -> dict[str, Any]:
    parse_address(address, "status")
    try:
        with urlopen(f"http://{address}/status", timeout=STATUS_TIMEOUT_S) as response:
            values: dict[str, Any] = json.load(response)
    except (URLError, OSError, ValueError) as error:
        raise RunError(
            f"{address}: no response ({error}); is the process running, with this "
            "`status_address` in its configuration?"
        ) from error
    return values
