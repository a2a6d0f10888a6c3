"""The `xvfl-lab` command."""

import typer

from xvfl.cli.main import run
from xvfl_lab.cli import bench_command, data_command, digits_command, reproduce_command

app = typer.Typer(
    help="Experiments, benchmarks and data sets of xvfl.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command()(reproduce_command.reproduce)
app.command()(bench_command.bench)
app.command()(digits_command.digits)
app.add_typer(data_command.app, name="data")


def main() -> None:
    """Run a command; report an `XVFLError` as one line and exit with code 2."""
    run(app)
