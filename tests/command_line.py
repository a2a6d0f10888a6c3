"""The command lines `xvfl` and `xvfl-lab`, called in this process."""

import contextlib
import io
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from unittest import mock

from xvfl.cli.main import main


@dataclass(frozen=True)
class CommandResult:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


def run_command(
    command: Callable[[], None], name: str, arguments: tuple[object, ...]
) -> CommandResult:
    """Run a command line in this process; return its exit code and output."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with (
        mock.patch.object(sys, "argv", [name, *map(str, arguments)]),
        mock.patch.object(sys, "excepthook", sys.excepthook),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        warnings.catch_warnings(),
    ):
        try:
            command()
        except SystemExit as ended:
            code = int(ended.code or 0)
    return CommandResult(code, out.getvalue(), err.getvalue())


def error_line(result: CommandResult) -> str:
    """Return the only error line of a rejected command. Warnings may precede it."""
    lines = [line for line in result.err.splitlines() if not line.startswith("warning: ")]
    assert result.code == 2 and result.out == "" and len(lines) == 1, result
    assert lines[0].startswith("error: ")
    return lines[0]


def run_xvfl(*arguments: object) -> CommandResult:
    """Run `xvfl`."""
    return run_command(main, "xvfl", arguments)


def rejected_with(*arguments: object) -> str:
    """Run `xvfl` with input that it rejects; return the error line."""
    return error_line(run_xvfl(*arguments))
