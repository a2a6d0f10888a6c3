"""`xvfl status`."""

import json
import os
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import typer
from rich.table import Column, Table

from xvfl.cli.heads_command import validation_text
from xvfl.cli.output import print_table
from xvfl.errors import RunError
from xvfl.service.addresses import TOKEN_VARIABLE, parse_address

STATUS_TIMEOUT_S = 10
LISTS = {
    "approvals": ("number", "kind", "reason", "asked"),
    "heads": ("number", "state", "digest", "encoders", "epoch", "validation", "ended", "problems"),
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
        str,
        typer.Argument(help="`status_address` of a coordinator or party: HOST:PORT, or https://…."),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the status of a running coordinator or party: state, uploads, heads.

    A browser shows the same at http://HOST:PORT/. If the address needs a token, the variable
    XVFL_TOKEN must hold it; for https, SSL_CERT_FILE may name the certificate of the authority.

    xvfl status 127.0.0.1:8480
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
                if name == "heads":
                    line["validation"] = validation_text(line)
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
    scheme, found, host = address.rpartition("://")
    if scheme not in ("", "http", "https"):
        raise RunError(f"{address}: expected HOST:PORT, http://HOST:PORT or https://HOST:PORT")
    parse_address(host, "status")
    token = os.environ.get(TOKEN_VARIABLE)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    url = address if found else f"http://{host}"
    request = Request(f"{url}/status", headers=headers)
    try:
        with urlopen(request, timeout=STATUS_TIMEOUT_S) as response:
            values: dict[str, Any] = json.load(response)
    except HTTPError as error:
        if error.code not in (401, 403):
            raise RunError(f"{address}: {error}; is this a `status_address`?") from error
        raise RunError(
            f"{address}: it needs the token of a caller with the right 'look'; set {TOKEN_VARIABLE}"
        ) from error
    except (URLError, OSError, ValueError) as error:
        raise RunError(
            f"{address}: no response ({error}); is the process running, with this "
            "`status_address` in its configuration?"
        ) from error
    return values
