"""The `xvfl-lab` command line."""

import re

import pytest
from typer.testing import CliRunner

from xvfl_lab.cli.main import app

HELP = {
    "reproduce": (
        ["FIGURE", "--dataset", "--quick", "--list", "--out", "--device", "--workers"],
        "reproduce missing-rates --dataset bank --quick",
    ),
    "digits": (["--out", "--seeds", "--rates", "--workers"], "xvfl-lab digits --seeds 5"),
    "bench": (["SECTIONS", "--quick", "--out"], "bench paper public"),
}


@pytest.mark.parametrize("command", HELP)
def test_help_names_the_options_and_gives_an_example(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "100"})
    options, example = HELP[command]
    text = " ".join(re.sub(r"\x1b\[[0-9;]*m|[│╭╮╰╯─]", " ", result.output).split())
    assert result.exit_code == 0
    assert all(option.lower() in text.lower() for option in options), text
    assert example in text


def test_help_lists_every_command() -> None:
    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0 and all(name in result.output for name in (*HELP, "data"))
