"""`xvfl-lab digits`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from xvfl.errors import InputError


def digits(
    out: Annotated[Path, typer.Option(help="Output folder for report.html and metrics.json.")] = (
        Path("out/digits")
    ),
    seeds: Annotated[int, typer.Option(help="Number of random seeds.", min=1)] = 1,
    first_seed: Annotated[int, typer.Option(help="First random seed.", min=0)] = 0,
    rates: Annotated[
        str, typer.Option(help="Missing rates, comma-separated.")
    ] = "0,0.3,0.5,0.7,0.9",
    workers: Annotated[
        int, typer.Option(help="Number of worker processes; 0 = one per core.", min=0)
    ] = 0,
) -> None:
    """Compare methods and prediction modes on scanned digits, in a few minutes.

    Two parties each hold one half of the images; in most rows one party has missing features.
    Trains xvfl+, the paper's X-VFL, random-mask training and a standalone model, and compares the
    prediction modes over missing rates. With several seeds it also prints paired differences:

    xvfl-lab digits --seeds 5 --rates 0.5,0.9
    """
    values = tuple(_rate(each) for each in rates.split(","))
    from xvfl_lab.digits_comparison import compare_digits

    compare_digits(out, seeds, first_seed, values, workers, Console())


def _rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise InputError(f"--rates: expected numbers from 0 to 1 separated by commas, got {text!r}")
    return value
