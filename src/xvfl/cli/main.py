"""The `xvfl` command: its subcommands, and how errors and warnings are reported."""

import os
import sys
import warnings
from collections.abc import Callable
from typing import Annotated, Any

import typer

from xvfl.cli import (
    align_command,
    approve_command,
    audit_command,
    certificates,
    check_command,
    complete_command,
    dashboard_command,
    demo,
    encoder_command,
    heads_command,
    inspect_command,
    release_command,
    runs,
    secret_command,
    services,
    serving,
    status_command,
    trail_command,
    upload_command,
    withdraw_command,
)
from xvfl.cli.output import print_error
from xvfl.errors import DataWarning, InputError, XVFLError
from xvfl.system.signals import INTERRUPTED
from xvfl.version import VERSION

EXIT_CODES = (
    "Exit codes: 0 success, also of a process that SIGTERM has stopped; 1 a changed trail (xvfl "
    "trail); 2 an error, which standard error names; 3 a release that waits for a party (xvfl "
    "release); 130 Ctrl-C."
)
"""The end of each command's help."""
app = typer.Typer(
    epilog=EXIT_CODES,
    help="Vertical federated learning for parties whose rows and columns only partly overlap.\n\n"
    "Start with `xvfl demo`. Then `xvfl init` writes a configuration for your own tables.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
PANELS: dict[str, tuple[Callable[..., None], ...]] = {
    "Train and predict": (
        demo.demo,
        inspect_command.inspect,
        runs.init,
        runs.train,
        runs.evaluate,
        runs.predict,
        complete_command.complete,
        runs.explain,
        dashboard_command.dashboard,
        serving.export,
        serving.serve,
    ),
    "Federation of processes": (
        check_command.check,
        services.party,
        services.coordinator,
        runs.predict_federation,
        status_command.status,
        approve_command.approve,
        approve_command.ask,
        heads_command.rollback,
        align_command.align,
        release_command.release,
        release_command.install,
        withdraw_command.withdraw,
        audit_command.audit,
    ),
}
"""The commands in the order of `xvfl --help`."""
PASS_ON: dict[str, Any] = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "help_option_names": [],
}
"""Settings of a command that passes all its arguments on."""
for _panel, _commands in PANELS.items():
    for _command in _commands:
        _settings = PASS_ON if _command is serving.serve else None
        register = app.command(
            rich_help_panel=_panel, context_settings=_settings, epilog=EXIT_CODES
        )
        register(_command)
for _command in encoder_command.COMMANDS:
    upload_command.app.command()(_command)
GROUPS = {
    "heads": heads_command.app,
    "upload": upload_command.app,
    "secret": secret_command.app,
    "certs": certificates.app,
    "trail": trail_command.app,
}
for _name, _group in GROUPS.items():
    app.add_typer(_group, name=_name, rich_help_panel="Federation of processes", epilog=EXIT_CODES)
    for _registered in _group.registered_commands:
        _registered.epilog = EXIT_CODES


def main() -> None:
    """Run the command line."""
    run(app)


def run(app: typer.Typer) -> None:
    """Run a command; report each problem of an `XVFLError` as one line, and exit with code 2."""
    # On ARM torch's allocator returns freed memory after 10 ms by default, which costs an eighth
    # of a training step. Read when torch is first imported.
    os.environ.setdefault("MIMALLOC_PURGE_DELAY", "10000")
    warnings.showwarning = _show_warning
    warnings.simplefilter("always", DataWarning)
    try:
        app()
    except XVFLError as error:
        for text in error.problems if isinstance(error, InputError) else [str(error)]:
            print_error(f"error: {' '.join(text.split())}")
        sys.exit(2)
    except KeyboardInterrupt:
        print_error("interrupted")
        sys.exit(INTERRUPTED)


def _show_warning(message: Warning | str, *rest: Any, **more: Any) -> None:
    print_error(f"warning: {' '.join(str(message).split())}")


def _version(show: bool) -> None:
    if show:
        print(f"xvfl {VERSION}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass
