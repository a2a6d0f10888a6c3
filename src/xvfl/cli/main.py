"""The `xvfl` command: puts the groups of commands together and reports errors."""

import os
import sys
import warnings
from typing import Annotated, Any

import typer

from xvfl.cli import certificates, demo, match_ids, runs, services
from xvfl.cli.exit import INTERRUPTED, say
from xvfl.errors import DataWarning, XVFLError
from xvfl.version import VERSION

app = typer.Typer(
    help="Vertical federated learning for parties whose rows and columns only partly overlap.\n\n"
    "Start with `xvfl demo`, then `xvfl init` writes a configuration for your own tables.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
for _command in (
    demo.demo,
    runs.init,
    runs.train,
    runs.evaluate,
    runs.predict,
    match_ids.align,
    services.coordinator,
    services.party,
    services.status,
):
    app.command()(_command)
app.add_typer(certificates.app, name="certs")


def main() -> None:
    """Run the command line."""
    run(app)


def run(app: typer.Typer) -> None:
    """Run a command; report an `XVFLError` as one line and exit with code 2."""
    # On ARM torch's allocator returns freed memory after 10 ms by default, which costs an eighth
    # of a training step. Read when torch is first imported.
    os.environ.setdefault("MIMALLOC_PURGE_DELAY", "10000")
    warnings.showwarning = _show_warning
    warnings.simplefilter("always", DataWarning)
    try:
        app()
    except XVFLError as error:
        say(f"error: {' '.join(str(error).split())}")
        sys.exit(2)
    except KeyboardInterrupt:
        say("interrupted")
        sys.exit(INTERRUPTED)


def _show_warning(message: Warning | str, *rest: Any, **more: Any) -> None:
    say(f"warning: {message}")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"xvfl {VERSION}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass
