"""The command line `xvfl-lab`, called in this process."""

from tests.command_line import CommandResult, error_line, run_command
from xvfl_lab.cli.main import main


def xvfl_lab(*arguments: object) -> CommandResult:
    """Run `xvfl-lab`."""
    return run_command(main, "xvfl-lab", arguments)


def error_of(*arguments: object) -> str:
    """Run `xvfl-lab` with input that it rejects; return the error line."""
    return error_line(xvfl_lab(*arguments))
