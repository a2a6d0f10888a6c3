"""`xvfl certs`: signing requests, and a certificate authority for trials."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from xvfl.cli.extras import require_extra
from xvfl.cli.output import print_table
from xvfl.errors import CertificateError, InputError

if TYPE_CHECKING:
    from xvfl.certs import Authority

app = typer.Typer(
    help="Create signing requests, and certificates of a small authority in a folder.\n\n"
    "Production deployments may use authorities of their own. Start with `xvfl certs init`.",
    no_args_is_help=True,
)
AuthorityFolder = Annotated[Path, typer.Option("--dir", help="Folder of the authority.")]
CERTS = Path("certs")


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to create.")] = CERTS,
    days: Annotated[int, typer.Option(help="Validity in days.", min=1)] = 5 * 365,
    address: Annotated[
        str | None,
        typer.Option("--coordinator", help="HOST:PORT at which parties reach the coordinator."),
    ] = None,
    party: Annotated[
        list[str] | None, typer.Option(help="Name of a party; may be repeated.")
    ] = None,
) -> None:
    """Create a certificate authority, and with --coordinator the files of a new federation.

    These are the coordinator's certificate and key in DIR, and beside DIR its configuration to
    fill in, coordinator.toml, and an enrolment kit for each party, PARTY.kit. Use it if the
    coordinator's organization runs the authority. Keep ca.key secret.

    xvfl certs init certs --coordinator fl.example.org:8443 --party bank --party shop

    Without --coordinator, give ca.crt and ca.crl to the coordinator and every party.

    xvfl certs init certs
    """
    with require_extra("federated"):
        from xvfl.certs import create_authority
        from xvfl.certs.first_files import write_federation

    if (address is None) != (not party):
        raise InputError("expected --coordinator and at least one --party, or neither")
    if address is None or not party:
        _print_authority(create_authority(folder, days))
        hosts = "--host localhost --host 127.0.0.1"
        print(f"next: xvfl certs issue coordinator --dir {folder} {hosts}")
        return
    authority, kits, config = write_federation(folder, days, address, party)
    _print_authority(authority)
    print(f"created {config}: fill it in")
    for path, made in kits:
        print(f"created {path}: send it to {made.party}, and in another way its fingerprint:")
        print(made.fingerprint)
    print(f"next: sign the requests of the parties: xvfl certs sign *.csr --dir {folder}")


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
        from xvfl.certs.release_key import release_pair

    pair = release_pair(folder, name)
    before = [each for each in pair if each.exists()]
    issued = open_authority(folder).issue(name, host or (), days)
    print(f"created {folder / name}.crt and {folder / name}.key, valid until {issued.ends[:10]}")
    print(f"give both to {name} with {folder / 'ca.crt'}, then delete the key here")
    if host:
        _print_release_pair([each for each in pair if each.exists() and each not in before], pair)


@app.command()
def request(
    name: Annotated[str, typer.Argument(help="Name of the party, or of the coordinator.")],
    folder: Annotated[Path, typer.Option("--dir", help="Folder of the files.")] = Path(),
    host: Annotated[
        list[str] | None,
        typer.Option(help="Coordinator only: a host name or IP address; may be repeated."),
    ] = None,
) -> None:
    """Create a private key and a signing request for the authority.

    The key stays on this machine. Send NAME.csr to the operator of the authority, and tell them
    the fingerprint in another way, so that nobody can exchange the request.

    xvfl certs request bank

    xvfl certs request coordinator --host fl.example.org
    """
    with require_extra("federated"):
        from xvfl.certs import create_request
        from xvfl.certs.release_key import create_release_pair, release_pair

    made = create_request(folder, name, host or ())
    _print_request(folder / name, made.fingerprint)
    if host:
        _print_release_pair(create_release_pair(folder, name), release_pair(folder, name))


@app.command()
def sign(
    requests: Annotated[
        list[Path], typer.Argument(metavar="REQUEST...", help="The signing requests (PEM).")
    ],
    folder: AuthorityFolder = CERTS,
    host: Annotated[
        list[str] | None,
        typer.Option(help="Coordinator only: a host of the server; may be repeated."),
    ] = None,
    days: Annotated[int, typer.Option(help="Validity in days.", min=1)] = 90,
    fingerprint: Annotated[
        str | None,
        typer.Option(help="Fingerprint of the key that its owner has told; refuse another one."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="File of the certificate; by default beside the request, as .crt."),
    ] = None,
) -> None:
    """Sign requests of `xvfl certs request`, or of other tools, and write the certificates.

    The name is that of the request: check that it is its owner's. Hosts are those given here,
    whatever the request asks for, so that no party gets the certificate of a server. --host,
    --fingerprint and --out are for a single request.

    xvfl certs sign bank.csr --fingerprint 3f8a…

    xvfl certs sign bank.csr shop.csr
    """
    with require_extra("federated"):
        from xvfl.certs import open_authority, read_request

    if len(requests) > 1 and (host or fingerprint or out):
        raise InputError("--host, --fingerprint, --out: expected one request")
    read = [(each, read_request(each)) for each in requests]
    authority = open_authority(folder)
    for file, asked in read:
        _check_fingerprint(file, fingerprint, asked.fingerprint)
        path = file.with_suffix(".crt") if out is None else out
        issued = authority.sign(asked, path, host or (), days)
        if fingerprint is None:
            print(f"signed for {asked.name}; ask them to confirm the fingerprint of their key:")
            print(asked.fingerprint)
        print(f"created {path}, valid until {issued.ends[:10]}, serial {issued.serial}")
        authority_file = folder / "ca.crt"
        print(f"send it to {asked.name}, without a kit also {authority_file}; neither is secret")


@app.command()
def revoke(
    name: Annotated[
        str, typer.Argument(help="The party or coordinator whose certificate to revoke.")
    ],
    folder: AuthorityFolder = CERTS,
    serial: Annotated[
        list[str] | None,
        typer.Option(help="Serial number of a certificate to revoke; may be repeated."),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Revoke all certificates of the name.")
    ] = False,
) -> None:
    """Revoke the certificate of a name; then copy the new ca.crl to the other sides.

    If the name has several certificates in use, say which: --serial after a renewal, --all if the
    party leaves or its machine is lost. `xvfl certs show` lists serial numbers.

    xvfl certs revoke bank

    xvfl certs revoke bank --serial 5f3a
    """
    with require_extra("federated"):
        from xvfl.certs import open_authority

    if serial and everything:
        raise InputError("expected --serial or --all, not both")
    revoked = open_authority(folder).revoke(name, serial or (), everything)
    print(f"revoked {', '.join(each.serial for each in revoked)} of {name}")
    print(f"copy {folder / 'ca.crl'} to the other sides: running processes read it within 10 s")


@app.command()
def kit(
    party: Annotated[str, typer.Argument(help="Name of the party.")],
    address: Annotated[
        str, typer.Option("--coordinator", help="HOST:PORT at which parties reach it.")
    ],
    folder: AuthorityFolder = CERTS,
    name: Annotated[
        str, typer.Option("--name", help="Name of the coordinator in its certificate.")
    ] = "coordinator",
    release_key: Annotated[
        Path | None,
        typer.Option(help="Its release.pub; by default NAME.release.pub of the folder."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The file; by default PARTY.kit.")] = None,
) -> None:
    """Write the enrolment kit of a party: one file, without a secret.

    It has the authority and its revocation list, address and name of the coordinator, and the key
    that verifies releases. Tell the party's operator the fingerprint in another way.

    xvfl certs kit shop --coordinator fl.example.org:8443
    """
    with require_extra("federated"):
        from xvfl.certs import pem_files
        from xvfl.certs.kit import create_kit

    made = create_kit(folder, party, name, address, release_key)
    path = Path(f"{party}.kit") if out is None else out
    pem_files.write_new(path, made.to_bytes(), pem_files.WORLD_READABLE)
    print(f"created {path}: send it to {party}")
    print(f"fingerprint of the kit: {made.fingerprint}")
    if not made.release_key:
        print(f"it has no key that verifies releases: add --release-key, or send {name}'s later")


@app.command()
def unpack(
    path: Annotated[Path, typer.Argument(metavar="KIT", help="The enrolment kit.")],
    folder: Annotated[Path, typer.Option("--dir", help="Folder of the files.")] = Path(),
    fingerprint: Annotated[
        str | None,
        typer.Option(help="Fingerprint of the kit that its sender has told; refuse another one."),
    ] = None,
) -> None:
    """Check an enrolment kit and write its files, a configuration to fill in, and a key.

    The key stays on this machine. Send PARTY.csr to the operator of the authority, as after
    `xvfl certs request`, and put the certificate that comes back beside the key. A key that is
    there already is kept.

    xvfl certs unpack shop.kit --fingerprint 9c41…
    """
    with require_extra("federated"):
        from xvfl.certs import create_request
        from xvfl.certs.kit import read_kit, unpack_kit

    read = read_kit(path)
    _check_fingerprint(path, fingerprint, read.fingerprint)
    for each in unpack_kit(read, folder):
        print(f"created {each}")
    print(f"coordinator {read.coordinator!r} at {read.address}")
    for line in read.authority_fingerprints:
        print(f"authority {line}")
    if fingerprint is None:
        print("ask the sender to confirm the fingerprint of the kit before you use it:")
        print(read.fingerprint)
    if not (folder / f"{read.party}.key").exists():
        _print_request(folder / read.party, create_request(folder, read.party).fingerprint)
    print(f"next: fill in {folder / read.party}.toml")


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
        table.add_column(column, overflow="fold", no_wrap=column == "serial")
    now = datetime.now(UTC)
    for each in authority.issued():
        hosts = ", ".join(each.hosts) or "none (client)"
        state = each.state(now)
        table.add_row(each.name, hosts, each.starts[:10], each.ends[:10], state, each.serial)
    print_table(table)


def _check_fingerprint(path: Path, expected: str | None, found: str) -> None:
    if expected is not None and expected.lower().replace(":", "") != found:
        raise CertificateError(
            f"{path}: expected the fingerprint {expected}, got {found}; ask its sender for the "
            "file again"
        )


def _print_authority(authority: "Authority") -> None:
    ends = authority.certificate.not_valid_after_utc
    print(f"created an authority in {authority.folder}, valid until {ends:%Y-%m-%d}")


def _print_request(path: Path, fingerprint: str) -> None:
    print(f"created {path}.key: it stays here; nobody else needs it")
    print(f"created {path}.csr: send it to the authority")
    print(f"fingerprint of the key: {fingerprint}")


def _print_release_pair(written: list[Path], pair: tuple[Path, Path]) -> None:
    """Say which files of the key pair that signs releases are new."""
    private, public = pair
    for path in written:
        print(f"created {path}")
    if private in written:
        print("the coordinator alone needs the .release.key; give the .release.pub to every party")
    elif public.exists():
        print(f"kept the key pair that signs releases: {public} is what the parties have")
