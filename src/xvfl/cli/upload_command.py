"""`xvfl upload`: uploads by file, and versions of a party's encoder."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xvfl.cli.extras import require_extra
from xvfl.cli.output import print_error, print_line

if TYPE_CHECKING:
    from xvfl.model.run_dir import RunDir

app = typer.Typer(
    help="Upload by file, for a party without a permanent connection; allow a new version.\n\n"
    "Ids must have been matched before with `xvfl align`, which needs a connection once. A file "
    "replaces the connection for the held-out list and the upload.",
    no_args_is_help=True,
)
CoordinatorFile = Annotated[Path, typer.Argument(help="The coordinator's configuration.")]
PartyFile = Annotated[Path, typer.Argument(help="The party's configuration.")]
Out = Annotated[Path, typer.Option("--out", help="The file to write.")]


@app.command()
def held_out(
    config: CoordinatorFile,
    party: Annotated[str, typer.Option(help="The party that will upload by file.")],
    out: Out,
) -> None:
    """At the coordinator: write the list of held-out rows, from which a party must not learn.

    The file also has the public key to which the party encrypts its upload. It is signed with the
    coordinator's certificate.

    xvfl upload held-out coordinator.toml --party bank --out bank.heldout
    """
    with require_extra("federated"):
        from xvfl.service.config import load_coordinator_config
        from xvfl.service.coordinator_service import CoordinatorService
        from xvfl.service.uploads.file_exchange import export_held_out

    service = CoordinatorService(load_coordinator_config(config), show=False)
    n_rows = export_held_out(service, party, out)
    print_line(f"wrote {out}: {n_rows} held-out rows of {party}")
    print_line(f"next, at {party}: xvfl upload export {party}.toml --held-out {out.name} --out …")


@app.command()
def export(
    config: PartyFile,
    held_out: Annotated[Path, typer.Option(help="The file of `xvfl upload held-out`.")],
    out: Out,
) -> None:
    """At the party: train the encoder if needed, and write the upload to a file.

    The file is signed with the party's certificate and encrypted to the coordinator. Ctrl-C stops
    the training; the same command continues it.

    xvfl upload export bank.toml --held-out bank.heldout --out bank.upload
    """
    with require_extra("federated"):
        from xvfl.certs import peer_name
        from xvfl.model.fitting import choose_device
        from xvfl.service.config import load_party_config
        from xvfl.service.party_inputs import PartyInputs
        from xvfl.service.state_dir import open_state_dir
        from xvfl.service.uploads.file_exchange import export_upload
        from xvfl.service.uploads.upload_party import UploadPartyService
        from xvfl.system.signals import INTERRUPTED, stop_on_signals
        from xvfl.training.threads import limit_threads

    loaded = load_party_config(config)
    name = peer_name(loaded.tls.read()[1])
    folder, log = open_state_dir(loaded, name)
    service = UploadPartyService(PartyInputs.load(name, loaded, folder), log)
    with stop_on_signals() as stop, limit_threads(False, choose_device(loaded.device)):
        try:
            manifest = export_upload(service, held_out, out, stop)
        finally:
            service.close()
    if manifest is None:
        print_error("stopped; the same command continues the training")
        raise typer.Exit(INTERRUPTED)
    names = ("version", "part", "appended", "replaced", "digest")
    about = {key: getattr(manifest, key) for key in names}
    log({"event": "upload_exported", **about})
    print_line(
        f"wrote {out}: version {manifest.name}, {manifest.rows} rows, of which "
        f"{manifest.appended} new and {manifest.replaced} changed, {manifest.n_bytes} bytes"
    )
    print_line(f"next, at the coordinator: xvfl upload import coordinator.toml {out.name}")


@app.command("import")
def import_file(
    config: CoordinatorFile,
    file: Annotated[
        Path, typer.Argument(help="A file of `xvfl upload export` or `xvfl withdraw --out`.")
    ],
    receipt: Annotated[
        Path | None,
        typer.Option(help="Where to write the receipt of a withdrawal; default: FILE.receipt."),
    ] = None,
) -> None:
    """At the coordinator: store an upload, or carry out a withdrawal, that arrived as a file.

    A file is rejected if it was changed, belongs to another federation or alignment, or has a
    version that was withdrawn or is older than the newest one.

    xvfl upload import coordinator.toml bank.upload
    """
    with require_extra("federated"):
        from xvfl.service.config import load_coordinator_config
        from xvfl.service.coordinator_service import CoordinatorService
        from xvfl.service.uploads.file_exchange import (
            import_upload,
            import_withdrawal,
            is_upload,
        )

    service = CoordinatorService(load_coordinator_config(config), show=False)
    if is_upload(file):
        manifest = import_upload(service, file)
        print_line(
            f"stored version {manifest.name} of {manifest.party}: {manifest.rows} rows; next: "
            f"xvfl coordinator {config}"
        )
        print_line(f"delete {file}, and copies of it: a withdrawal does not reach them")
        return
    out = receipt or file.with_name(f"{file.name}.receipt")
    name = import_withdrawal(service, file, out)
    print_line(f"deleted what {name} withdrew; wrote {out}")
    print_line(f"next, at {name}: xvfl withdraw {name}.toml --receipt {out.name}")


@app.command()
def new_version(
    config: PartyFile,
    keep_encoder: Annotated[
        bool, typer.Option("--keep-encoder", help="Keep the encoder: embed the rows again only.")
    ] = False,
) -> None:
    """At the party: allow the next version of the encoder and of the upload.

    `xvfl party`, or `xvfl upload export`, trains the encoder and uploads. Earlier encoders are
    kept, for heads that were trained on their uploads. A coordinator can ask for a version
    (`xvfl ask`), but only the party's operator can allow it.

    With --keep-encoder, the new version has the same encoder: use it if rows have changed before
    the upload was complete. A coordinator can compare two versions of a row.

    xvfl upload new-version bank.toml
    """
    with require_extra("federated"):
        from xvfl.service.uploads.party_encoder import allow_next_version

    _allow(config, lambda folder: str(allow_next_version(folder, keep_encoder)))


@app.command()
def new_rows(config: PartyFile) -> None:
    """At the party: allow the upload of rows that are new or have changed, by the same encoder.

    `xvfl party`, or `xvfl upload export`, finds these rows and uploads them as a part of the same
    version. Match new ids first (`xvfl align`). A coordinator can compare a changed row with the
    earlier one.

    xvfl upload new-rows bank.toml
    """
    with require_extra("federated"):
        from xvfl.service.uploads.party_encoder import allow_new_rows

    _allow(config, allow_new_rows)


def _allow(config: Path, allow: "Callable[[RunDir], str]") -> None:
    """Allow another version, or part of a version, in a party's state folder."""
    with require_extra("federated"):
        from xvfl.certs import peer_name
        from xvfl.service.config import load_party_config
        from xvfl.service.state_dir import open_state_dir

    loaded = load_party_config(config)
    name = peer_name(loaded.tls.read()[1])
    folder, log = open_state_dir(loaded, name, show=False, create=False)
    version = allow(folder)
    log({"event": "version_allowed", "version": version})
    print_line(f"version {version} is allowed; {name} uploads it for the next training")
