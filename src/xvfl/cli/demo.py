"""`xvfl demo`: what two parties can predict alone, and what together."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from xvfl.cli.extras import require_extra


def demo(
    out: Annotated[
        Path | None,
        typer.Option(help="Output folder; by default out/demo, or out/federated.", show_default=""),
    ] = None,
    federated: Annotated[
        bool,
        typer.Option(
            "--federated",
            help="Run a coordinator and two parties as separate processes; both parties are "
            "stopped before the head is trained.",
        ),
    ] = False,
) -> None:
    """Train on two tables of real data, in a minute, and write a page with pictures.

    Two parties each hold one half of scanned digits (included in scikit-learn); in most rows one
    party has missing pixels. The page shows what each party has, what it predicts alone, what both
    predict together, and which missing pixels were filled in.
    """
    if federated:
        with require_extra("federated"):
            from xvfl.cli.demo_federated import run_federated

        run_federated(out or Path("out/federated"), Console())
        return
    from xvfl.cli.demo_digits import run_demo

    run_demo(out or Path("out/demo"), Console())
