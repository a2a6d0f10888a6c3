"""`xvfl coordinator`, `party` and `status`: a federation of organisations."""

import json
from pathlib import Path
from typing import Annotated, Any
from urllib.error import URLError
from urllib.request import urlopen

import typer
from rich.console import Console
from rich.table import Table

from xvfl.cli.exit import INTERRUPTED
from xvfl.cli.extras import extra
from xvfl.cli.tables import print_evaluation
from xvfl.errors import ConfigError, InputError, RunError

Config = Annotated[Path, typer.Argument(help="This side's configuration.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Write the log to its file alone.")]


def coordinator(config: Config, quiet: Quiet = False) -> None:
    """Train with the parties that dial in: match ids, train, evaluate, release.

    Stopped or killed and started again it goes on from the last common checkpoint.

    xvfl coordinator coordinator.toml
    """
    with extra("federated"):
        from xvfl.service.coordinator import serve_coordinator
    from xvfl.service.config import CoordinatorConfig, read_service_config

    side = read_service_config(config)
    if not isinstance(side, CoordinatorConfig):
        raise ConfigError(f"{config}: expected `listen`, the coordinator's; this is a party's")
    outcome = serve_coordinator(side, not quiet)
    if outcome.evaluation is None:
        typer.echo(f"stopped; continue with: xvfl coordinator {config}", err=True)
        raise typer.Exit(INTERRUPTED)
    print_evaluation(f"{side.state_dir}, {outcome.step} steps", outcome.evaluation)


def party(config: Config, quiet: Quiet = False) -> None:
    """Take part with this party's table until the coordinator says that the run is over.

    It dials out, listens nowhere, and dials again when the line breaks. Killed and started again
    it goes on from its own last checkpoint.

    xvfl party bank.toml
    """
    with extra("federated"):
        from xvfl.service.party import serve_party
    from xvfl.service.config import PartyProcessConfig, read_service_config

    side = read_service_config(config)
    if not isinstance(side, PartyProcessConfig):
        raise ConfigError(f"{config}: expected `coordinator`, a party's; this is the coordinator's")
    serve_party(side, not quiet)


def status(
    address: Annotated[str, typer.Argument(help="A side's `health` address, HOST:PORT.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Show where a running coordinator or party stands.

    xvfl status localhost:7480
    """
    said = _ask(address)
    if as_json:
        print(json.dumps(said))
        return
    table = Table(title=f"{said.get('side')} at {address}")
    table.add_column("")
    table.add_column("", justify="right")
    for name, value in said.items():
        shown = (
            ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
        )
        table.add_row(name.replace("_", " "), str(shown))
    Console(width=None if Console().is_terminal else 100).print(table)


def demo_federated(out: Path) -> None:
    """Show a federation of processes on loopback."""
    with extra("federated"):
        from xvfl.cli.demo_federated import run_federated

    run_federated(out, Console())


def _ask(address: str) -> dict[str, Any]:
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit():
        raise InputError(f"status: expected HOST:PORT, got {address!r}")
    try:
        with urlopen(f"http://{address}/status", timeout=10) as reply:
            said: dict[str, Any] = json.load(reply)
    except (URLError, OSError, ValueError) as error:
        raise RunError(
            f"{address}: nobody answers ({error}); is `health` set in its configuration?"
        ) from error
    return said
