"""`xvfl certs`: a certificate authority for trials."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from xvfl.cli.extras import require_extra
from xvfl.cli.output import print_table

app = typer.Typer(
    help="Create certificates for trials with a small certificate authority in a folder.\n\n"
    "Production deployments use their own certificates. Start with `xvfl certs init`.",
    no_args_is_help=True,
)
AuthorityFolder = Annotated[Path, typer.Option("--dir", help="Folder of the authority.")]
CERTS = Path("certs")


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to create.")] = CERTS,
    days: Annotated[int, typer.Option(help="Validity in days.", min=1)] = 5 * 365,
) -> None:
    """Create a certificate authority.

    Give ca.crt and ca.crl to the coordinator and every party. Keep ca.key secret.

    xvfl certs init certs
    """
    with require_extra("federated"):
        from xvfl.certs import create_authority

    authority = create_authority(folder, days)
    ends = authority.certificate.not_valid_after_utc
    print(f"created an authority in {folder}, valid until {ends:%Y-%m-%d}")
    print(f"next: xvfl certs issue coordinator --dir {folder} --host localhost --host 127.0.0.1")


@app.command()
def issue(
    name: Annotated[str, typer.Argument(help="Name of the party, or of the coordinator.")],
    folder: AuthorityFolder = CERTS,
    host: Annotated[
        list[str] | None,
        typer.Option(
            help="Coordinator only: a host name or IP address that parties connect to; "
            "may be repeated."
        ),
    ] = None,
    days: Annotated[int, typer.Option(help="Validity in days.", min=1)] = 90,
) -> None:
    """Create a certificate and its key for a party, or with --host for the coordinator.

    The coordinator also gets a key pair that signs releases of the head: NAME.release.key for
    itself (`signing_key`), NAME.release.pub for every party (`release_key`).

    xvfl certs issue bank

    xvfl certs issue coordinator --host fl.example.org --host 10.0.0.5
    """
    with require_extra("federated"):
        from xvfl.certs import open_authority

    issued = open_authority(folder).issue(name, host or (), days)
    print(f"created {folder / name}.crt and {folder / name}.key, valid until {issued.ends[:10]}")
    print(f"give both to {name} with {folder / 'ca.crt'}, then delete the key here")
    if host:
        print(f"created {folder / name}.release.key and {folder / name}.release.pub")
        print(f"give the key to {name} and delete it here; give the .pub to every party")


@app.command()
def revoke(
    name: Annotated[
        str, typer.Argument(help="The party or coordinator whose certificates to revoke.")
    ],
    folder: AuthorityFolder = CERTS,
) -> None:
    """Revoke all certificates of a name; then copy the new ca.crl to the other sides.

    xvfl certs revoke bank
    """
    with require_extra("federated"):
        from xvfl.certs import open_authority

    revoked = open_authority(folder).revoke(name)
    print(f"revoked {', '.join(each.serial for each in revoked)} of {name}")
    print(f"copy {folder / 'ca.crl'} to the other sides: running processes read it within 10 s")


@app.command()
def show(folder: AuthorityFolder = CERTS) -> None:
    """List the issued certificates and whether they are valid.

    xvfl certs show
    """
    with require_extra("federated"):
        from xvfl.certs import open_authority

    authority = open_authority(folder)
    ends = authority.certificate.not_valid_after_utc
    table = Table(title=f"{folder}: authority valid until {ends:%Y-%m-%d}")
    for column in ("name", "hosts", "from", "until", "state", "serial"):
        table.add_column(column, overflow="fold")
    now = datetime.now(UTC)
    for each in authority.issued():
        hosts = ", ".join(each.hosts) or "none (client)"
        state = each.state(now)
        table.add_row(each.name, hosts, each.starts[:10], each.ends[:10], state, each.serial)
    print_table(table)
