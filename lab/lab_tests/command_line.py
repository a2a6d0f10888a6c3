"""The command `xvfl-lab`, called in this process."""

import contextlib
import io
import sys
import warnings
from dataclasses import dataclass
from unittest import mock

from xvfl_lab.cli.main import main


@dataclass(frozen=True)
class CommandResult:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


def xvfl_lab(*arguments: object) -> CommandResult:
    """Run a command as a shell would."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with (
        mock.patch.object(sys, "argv", ["xvfl-lab", *map(str, arguments)]),
        mock.patch.object(sys, "excepthook", sys.excepthook),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        warnings.catch_warnings(),
    ):
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
    return CommandResult(code, out.getvalue(), err.getvalue())


def error_of(*arguments: object) -> str:
    """Run a command that must fail; return its one line of error. Warnings may come before."""
    result = xvfl_lab(*arguments)
    lines = [line for line in result.err.splitlines() if not line.startswith("warning: ")]
    assert result.code == 2 and result.out == "" and len(lines) == 1, result
    assert lines[0].startswith("error: ")
    return lines[0]
