"""`xvfl export` and `xvfl serve`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xvfl.cli.extras import require_extra
from xvfl.errors import RunError

if TYPE_CHECKING:
    from xvfl.data.sources import Source
    from xvfl.model.run_dir import RunDir


def export(
    run: Annotated[
        Path,
        typer.Argument(
            help="A finished run folder, a saved model, or a party's configuration or state folder "
            "with a released head."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The bundle to write, such as bank.xvfl.")],
    party: Annotated[
        str | None,
        typer.Option(help="Export this party alone, for mode local. Default: all parties."),
    ] = None,
    sign: Annotated[
        Path | None,
        typer.Option(help="An Ed25519 private key (PEM), such as a coordinator's release.key."),
    ] = None,
) -> None:
    """Export a trained model as a bundle: one file that predicts without torch.

    The nets become ONNX. Before the file is written, they are compared with torch's on random rows
    with gaps; with a party's configuration, the predictions of up to 1,000 rows of its table are
    compared, too. The bundle also holds the encoders, the calibration, a training summary and a
    model card. It holds no ids.

    xvfl export run --party clinic --out clinic.xvfl

    xvfl export clinic.toml --out clinic.xvfl
    """
    with require_extra("serve"):
        import onnx  # noqa: F401

        from xvfl.model.export.bundle_export import export_run
        from xvfl_serve.errors import ServeError

    from xvfl.model.run_dir import RunDir

    folder, source = _party_folder(run) if run.suffix == ".toml" else (RunDir(run), None)
    try:
        predictor, check = export_run(folder, out, party, sign, source)
    except ServeError as error:
        raise RunError(str(error)) from error
    if check is not None:
        print(check)
    modes = ", ".join(f"{mode} {name}".strip() for mode, name in predictor.outputs)
    print(f"wrote {out} ({out.stat().st_size:,} bytes; {modes}); next: xvfl serve {out}")


def _party_folder(config: Path) -> "tuple[RunDir, Source]":
    """Return the state folder and the rows of the party that a configuration describes."""
    with require_extra("federated"):
        from xvfl.certs import peer_name
        from xvfl.service.config import load_party_config
    from xvfl.model.run_dir import RunDir
    from xvfl.model.workflow import read_source

    loaded = load_party_config(config)
    name = peer_name(loaded.tls.read()[1])
    return RunDir(loaded.state_dir), read_source(loaded.table, loaded.id_column, name)


def serve(context: typer.Context) -> None:
    """Serve a bundle over HTTP; `xvfl serve --help` lists the options.

    xvfl serve clinic.xvfl --port 8080
    """
    with require_extra("serve"):
        from xvfl_serve.command import main

    main(context.args, "xvfl serve")
