"""`xvfl export` and `xvfl serve`."""

from pathlib import Path
from typing import Annotated

import typer

from xvfl.cli.extras import require_extra
from xvfl.errors import RunError


def export(
    run: Annotated[
        Path,
        typer.Argument(
            help="A finished run folder, a saved model, or a party's state folder with a released "
            "head."
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
    with gaps. The bundle also holds the encoders, the calibration, a training summary and a model
    card. It holds no ids.

    xvfl export run --party clinic --out clinic.xvfl
    """
    with require_extra("serve"):
        import onnx  # noqa: F401

        from xvfl.model.export.bundle_export import export_run
        from xvfl_serve.errors import ServeError
    from xvfl.model.run_dir import RunDir

    try:
        predictor = export_run(RunDir(run), out, party, sign)
    except ServeError as error:
        raise RunError(str(error)) from error
    modes = ", ".join(f"{mode} {name}".strip() for mode, name in predictor.outputs)
    print(f"wrote {out} ({out.stat().st_size:,} bytes; {modes}); next: xvfl serve {out}")


def serve(context: typer.Context) -> None:
    """Serve a bundle over HTTP; `xvfl serve --help` lists the options.

    xvfl serve clinic.xvfl --port 8080
    """
    with require_extra("serve"):
        from xvfl_serve.command import main

    main(context.args, "xvfl serve")
