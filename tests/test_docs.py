"""The code blocks of the docs run word for word."""

import re
import shlex
import tomllib
from pathlib import Path
from textwrap import dedent

import pytest
import typer

from tests.small_tables import SOURCE
from xvfl.cli.main import app
from xvfl.config import LabelsConfig, parse_config
from xvfl.service.config import CoordinatorConfig, PartyProcessConfig, load_config

ROOT = SOURCE.parent
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)
BLOCK = re.compile(r"^ *```.*?\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
PAGES = sorted(each.relative_to(ROOT) for each in (ROOT / "docs").rglob("*.md"))


@pytest.mark.slow
def test_the_python_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    names: dict[str, object] = {}
    for number, code in enumerate(PYTHON.findall(page)):
        exec(compile(code, f"docs/python.md, block {number}", "exec"), names)
    assert (tmp_path / "model" / "manifest.json").is_file()


@pytest.mark.slow
def test_the_page_on_explanations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "explain.md").read_text(encoding="utf-8")
    for code in PYTHON.findall(page):
        exec(compile(code, "docs/explain.md", "exec"), {})
    assert "shapley" in capsys.readouterr().out
    assert (tmp_path / "explanation.html").is_file()


def test_the_page_on_regression() -> None:
    page = (ROOT / "docs" / "regression.md").read_text(encoding="utf-8")
    names: dict[str, object] = {}
    for code in PYTHON.findall(page):
        exec(compile(code, "docs/regression.md", "exec"), names)
    (labels,) = _toml("regression.md")
    assert LabelsConfig(**tomllib.loads(labels)["labels"]).task == "regression"


def _toml(page: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return [dedent(code) for code in re.findall(r"```toml\n(.*?)```", text, re.DOTALL)]


def test_the_configuration_example() -> None:
    config = parse_config(_toml("configuration.md")[0], "docs/configuration.md")
    assert set(config.parties) == {"bank", "shop"} and config.train.random_state == 7


def test_the_service_examples(tmp_path: Path) -> None:
    path, configs = tmp_path / "side.toml", []
    for code in _toml("deploy.md"):
        path.write_text(code)
        configs.append(load_config(path))
    coordinator, party = configs
    assert isinstance(coordinator, CoordinatorConfig) and isinstance(party, PartyProcessConfig)
    assert coordinator.release_to == ("shop",) and party.matching == coordinator.matching


@pytest.mark.parametrize("page", [Path("README.md"), *PAGES], ids=str)
def test_commands_and_options_exist(page: Path) -> None:
    for block in BLOCK.findall((ROOT / page).read_text(encoding="utf-8")):
        for line in dedent(block).replace("\\\n", " ").splitlines():
            if line.startswith("xvfl "):
                assert not (wrong := _unknown_words(line)), f"{line}: {wrong}"


def _unknown_words(line: str) -> list[str]:
    """The command, or the options, of a line that `xvfl` does not have or hides."""
    words = shlex.split(line, comments=True)[1:]
    command = typer.main.get_command(app)
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        if words[0] not in command.commands:
            return words[:1]
        command = command.commands[words.pop(0)]
    if command.name == "serve":  # its options are those of xvfl-serve
        return []
    shown = [each for each in command.params if not getattr(each, "hidden", False)]
    known = {name for each in shown for name in (*each.opts, *each.secondary_opts)}
    given = {each.partition("=")[0] for each in words if each.startswith("--")}
    return sorted(given - known - {"--help", "--version"})


def test_the_picture_of_the_home_page_says_what_is_sent() -> None:
    assert "images/overview.svg" in (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    picture = (ROOT / "docs" / "images" / "overview.svg").read_text(encoding="utf-8")
    assert "embeddings are sent" in picture and "gradient" not in picture
