"""`xvfl upload exclude`, `train` and `install`: train the encoder on another machine."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from xvfl.cli.extras import require_extra
from xvfl.cli.output import print_error, print_line
from xvfl.cli.upload_command import Out, PartyFile

if TYPE_CHECKING:
    from xvfl.service.party_inputs import PartyInputs
    from xvfl.system.event_log import LogFunction


def exclude(
    config: PartyFile,
    out: Out,
    held_out: Annotated[
        Path | None,
        typer.Option(
            help="The file of `xvfl upload held-out`; not needed if the party received the list "
            "over its connection."
        ),
    ] = None,
) -> None:
    """At the party: write the ids from which its encoder must not learn, to train it elsewhere.

    These are the rows that are held out or withdrawn. Give the file to the machine that trains.

    xvfl upload exclude bank.toml --held-out bank.heldout --out bank.exclude
    """
    with require_extra("federated"):
        from xvfl.service.uploads.encoder_file import export_excluded

    inputs, _ = _open(config)
    count = export_excluded(inputs, held_out, out)
    print_line(f"wrote {out}: {count} ids of {inputs.name}")
    print_line(
        f"next, where the encoder is trained: xvfl upload train {config.name} --exclude "
        f"{out.name} --out {inputs.name}.encoder"
    )


def train(
    config: PartyFile,
    exclude: Annotated[Path, typer.Option(help="The file of `xvfl upload exclude`.")],
    out: Out,
    device: Annotated[
        Literal["auto", "cpu", "cuda"] | None,
        typer.Option(help="Device of the training; default: `device` of CONFIG."),
    ] = None,
) -> None:
    """On another machine, such as one with a GPU: train the encoder, and write it to a file.

    It needs copies of the party's configuration and of its table; certificates, keys and the state
    folder are not read. Ctrl-C stops the training; the same command continues it from OUT.training.

    xvfl upload train bank.toml --exclude bank.exclude --out bank.encoder --device cuda
    """
    with require_extra("federated"):
        from xvfl.model.fitting import choose_device
        from xvfl.model.progress import work_bar
        from xvfl.model.run_dir import RunDir
        from xvfl.service.config import load_party_config
        from xvfl.service.party_inputs import PartyInputs
        from xvfl.service.uploads.encoder_file import read_excluded, train_encoder_file
        from xvfl.system.files import set_private_umask
        from xvfl.system.signals import INTERRUPTED, stop_on_signals
        from xvfl.training.threads import limit_threads

    loaded = load_party_config(config)
    loaded = replace(loaded, device=device or loaded.device)
    name, ids = read_excluded(exclude)
    set_private_umask()
    inputs = PartyInputs.load(name, loaded, RunDir(f"{out}.training").create())
    with (
        stop_on_signals() as stop,
        limit_threads(False, choose_device(loaded.device)),
        work_bar("training") as report,
    ):
        rows = train_encoder_file(inputs, ids, out, stop, report)
    if rows is None:
        print_error("stopped; the same command continues the training")
        raise typer.Exit(INTERRUPTED)
    print_line(f"wrote {out}: learned from {rows} rows")
    print_line(f"next, at {name}: xvfl upload install {config.name} {out.name}")


def install(
    config: PartyFile, file: Annotated[Path, typer.Argument(help="A file of `xvfl upload train`.")]
) -> None:
    """At the party: install an encoder that was trained elsewhere.

    The next start of `xvfl party` or `xvfl upload export` uploads with it, without training. Stop
    the party first. The file is rejected if `[encoder]`, the columns or the rows that it learned
    from are others than at this party.

    xvfl upload install bank.toml bank.encoder
    """
    with require_extra("federated"):
        from xvfl.service.uploads.encoder_file import install_encoder

    inputs, log = _open(config)
    version = install_encoder(inputs, file)
    log({"event": "encoder_installed", "version": version, "file": str(file)})
    print_line(f"installed version {version} of the encoder; next: xvfl party {config}")


def _open(config: Path) -> "tuple[PartyInputs, LogFunction]":
    """Load a party's configuration, table and state folder."""
    from xvfl.certs import peer_name
    from xvfl.service.config import load_party_config
    from xvfl.service.party_inputs import PartyInputs
    from xvfl.service.state_dir import open_state_dir

    loaded = load_party_config(config)
    name = peer_name(loaded.tls.read()[1])
    folder, log = open_state_dir(loaded, name, show=False, create=False)
    return PartyInputs.load(name, loaded, folder), log


COMMANDS = exclude, train, install
