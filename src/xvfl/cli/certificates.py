"""`xvfl certs`: a small authority for trials."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from xvfl.cli.extras import extra

app = typer.Typer(
    help="Certificates for trials: a small authority in a folder.\n\n"
    "Real deployments bring their own. Start with `xvfl certs init`.",
    no_args_is_help=True,
)
RunDir = Annotated[Path, typer.Option("--dir", help="The authority's folder.")]
CERTS = Path("certs")


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to make.")] = CERTS,
    days: Annotated[int, typer.Option(help="How long it lasts.", min=1)] = 5 * 365,
) -> None:
    """Make an authority: ca.crt for all_parties, ca.crl for the coordinator, ca.key for nobody.

    xvfl certs init certs
    """
    with extra("federated"):
        from xvfl.certs import make_authority

    made = make_authority(folder, days)
    ends = made.certificate.not_valid_after_utc
    print(f"made an authority in {folder}, valid until {ends:%Y-%m-%d}")
    print(f"next: xvfl certs issue coordinator --dir {folder} --host localhost --host 127.0.0.1")


@app.command()
def issue(
    name: Annotated[str, typer.Argument(help="The party, or the coordinator.")],
    folder: RunDir = CERTS,
    host: Annotated[
        list[str] | None,
        typer.Option(help="A host name or address it serves under; repeat. Parties need none."),
    ] = None,
    days: Annotated[int, typer.Option(help="How long it lasts.", min=1)] = 90,
) -> None:
    """Make a certificate and its key for a party, or for the coordinator with --host.

    xvfl certs issue bank
    xvfl certs issue coordinator --host fl.example.org --host 10.0.0.5
    """
    with extra("federated"):
        from xvfl.certs import open_authority

    made = open_authority(folder).issue(name, host or (), days)
    print(f"made {folder / name}.crt and {folder / name}.key, valid until {made.ends[:10]}")
    print(f"hand both to {name} with {folder / 'ca.crt'}, then delete the key here")


@app.command()
def revoke(
    name: Annotated[str, typer.Argument(help="Whose certificates to revoke.")],
    folder: RunDir = CERTS,
) -> None:
    """Revoke every certificate of a name; the coordinator must have the new ca.crl.

    xvfl certs revoke bank
    """
    with extra("federated"):
        from xvfl.certs import open_authority

    revoked = open_authority(folder).revoke(name)
    print(f"revoked {', '.join(each.serial for each in revoked)} of {name}")
    print(f"copy {folder / 'ca.crl'} to the coordinator, which reads it at once")


@app.command()
def show(folder: RunDir = CERTS) -> None:
    """List what was issued and whether it can be used.

    xvfl certs show
    """
    with extra("federated"):
        from xvfl.certs import open_authority

    authority = open_authority(folder)
    ends = authority.certificate.not_valid_after_utc
    table = Table(title=f"{folder}: authority valid until {ends:%Y-%m-%d}")
    for column in ("name", "serves", "from", "until", "state", "serial"):
        table.add_column(column, overflow="fold")
    now = datetime.now(UTC)
    for each in authority.issued():
        hosts = ", ".join(each.hosts) or "nothing"
        state = each.state(now)
        table.add_row(each.name, hosts, each.starts[:10], each.ends[:10], state, each.serial)
    Console(width=None if Console().is_terminal else 120).print(table)
