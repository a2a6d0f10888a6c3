"""`xvfl dashboard`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from xvfl.cli.output import print_error
from xvfl.errors import InputError


def dashboard(
    runs: Annotated[Path, typer.Argument(help="A folder with run folders, or one run folder.")],
    port: Annotated[int, typer.Option(help="Port; 0: any free one.", min=0, max=65535)] = 8470,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Host name that browsers may use besides localhost and IP addresses; unless "
            "--host is a loopback address, names without a dot are allowed too. May be repeated.",
        ),
    ] = None,
    tokens: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File of callers, in each line a name, a token and rights, such as `ann TOKEN "
            "look`; a browser asks for the token as the password.",
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(help="Certificate of the page (PEM), which then is https.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Private key of --tls-cert.")] = None,
) -> None:
    """Show runs on a web page: curves of a training, parties, missing features, evaluation.

    The page follows a run while it trains. It reads run folders of `xvfl train`, and state folders
    of coordinators (uploads, heads) and parties (what left them, withdrawals). It changes nothing
    and loads nothing from outside.

    By default only this machine can open the page. With another --host and without --tokens,
    everybody who reaches the port sees the runs, with examples of their tables.

    xvfl dashboard runs
    """
    from xvfl.model.dashboard.dashboard_server import DashboardServer
    from xvfl.system.signals import stop_on_signals
    from xvfl_serve.http.access import is_loopback

    if (tls_cert is None) != (tls_key is None):
        raise InputError("--tls-cert: expected --tls-key as well, or neither")
    server = DashboardServer(runs, host, port, allowed_host or (), tokens, _log, tls_cert, tls_key)
    try:
        with stop_on_signals() as stop:
            if tokens is None and not is_loopback(host):
                print_error(f"warning: everybody who reaches {host} can read these runs")
            elif tls_cert is None and not is_loopback(host):
                print_error("warning: tokens can be read on the network; give --tls-cert")
            print(f"{server.url} shows {runs}; Ctrl-C ends it", flush=True)
            stop.wait()
    finally:
        server.close()


def _log(event: Mapping[str, Any]) -> None:
    from xvfl.system.event_log import format_event

    print_error(format_event(event))
