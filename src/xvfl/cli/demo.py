"""`xvfl demo`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from xvfl.errors import InputError


def demo(
    out: Annotated[Path, typer.Option(help="Folder for report.html and metrics.json.")] = Path(
        "out/demo"
    ),
    seeds: Annotated[int, typer.Option(help="Repeat with this many seeds.", min=1)] = 1,
    first_seed: Annotated[int, typer.Option(help="The first of them.", min=0)] = 0,
    rates: Annotated[
        str, typer.Option(help="Missing rates, separated by commas.")
    ] = "0,0.3,0.5,0.7,0.9",
    workers: Annotated[
        int, typer.Option(help="Processes side by side; 0 = one a core.", min=0)
    ] = 0,
    federated: Annotated[
        bool,
        typer.Option(
            "--federated",
            help="Coordinator and parties as processes of their own; one is killed on the way.",
        ),
    ] = False,
) -> None:
    """Two parties, real data, two minutes: what predicting alone costs and completion gives back.

    Each party sees one half of scanned digits (scikit-learn's own copy); most rows miss features
    at one of them. Trains X-VFL, the paper's loss alone, a standalone model and random-mask
    training, and compares the three ways to predict over missing rates.

    With several seeds it also prints paired differences: `xvfl demo --seeds 5 --rates 0.5,0.9`.
    """
    if federated:
        from xvfl.cli.services import demo_federated

        demo_federated(out if out != Path("out/demo") else Path("out/federated"))
        return
    from xvfl_lab.experiments.demo import run_demo

    values = tuple(_rate(each) for each in rates.split(","))
    run_demo(out, seeds, first_seed, values, workers, Console())


def _rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise InputError(f"--rates: expected numbers from 0 to 1 separated by commas, got {text!r}")
    return value
