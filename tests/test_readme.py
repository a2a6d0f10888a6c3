"""The examples of the README and of the quickstart run word for word."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from tests.processes import SOURCES
from tests.small_tables import SOURCE
from xvfl.primitives.metrics import auroc

ROOT = SOURCE.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
QUICKSTART = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")


def block(after: str, language: str, page: str = QUICKSTART) -> str:
    """Return the first code block of a language after a text."""
    found = re.search(rf"```{language}\n(.*?)```", page[page.index(after) :], re.DOTALL)
    assert found is not None
    return found.group(1)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A PATH on which `python` and `xvfl` are the ones under test."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, command in {"python": "", "xvfl": "-m xvfl"}.items():
        script = folder / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {command} "$@"\n')
        script.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ.get('PATH', '/usr/bin:/bin')}"


@pytest.mark.slow
def test_the_walk_through(path: str, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block("walk-through", "bash")],
        cwd=work,
        env={"PATH": path, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # On a slow machine, lines of progress.
    assert all(line.startswith("training: ") for line in done.stderr.splitlines()), done.stderr
    assert "collaborative" in done.stdout and "trained 20 epochs" in done.stdout
    truth = pd.read_csv(work / "clinic.csv").set_index("patient")["diagnosis"]
    together, assisted, alone = (
        pd.read_csv(work / name, keep_default_na=False).set_index("id")
        for name in ("collaborative.csv", "assisted.csv", "local.csv")
    )
    assert len(together) == len(assisted) == 569
    assert len(alone) == len(pd.read_parquet(work / "laboratory.parquet")) == 398
    assert set(together["mode"]) == {"collaborative"} and set(alone["mode"]) == {"local"}
    assert set(assisted["mode"]) == {"assisted", "local"}
    assert set(alone["parties"]) == {"laboratory"}
    assert set(together["parties"]) == {"clinic", "clinic+laboratory"}
    for answers in (together, assisted, alone):
        assert _auroc(answers, truth) > 0.7
    for name in ("curves.png", "evaluation.png", "evaluation.json"):
        assert (work / "run" / name).stat().st_size > 0
    check_serving(path, work)


def check_serving(path: str, work: Path) -> None:
    """Export the run, serve it and ask for a prediction with two fields left out."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block("serving", "bash")],
        cwd=work,
        env={"PATH": path, "PYTHONPATH": SOURCES, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    answer = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    (prediction,) = answer["predictions"]
    assert set(prediction["probabilities"]) == {"benign", "malignant"}
    assert prediction["mode"] == "local" and prediction["parties"] == ["clinic"]
    assert prediction["completed"] == 2 / 3


def _auroc(answers: pd.DataFrame, truth: pd.Series) -> float:
    proba = answers[["proba_benign", "proba_malignant"]].to_numpy(dtype=float)
    return auroc(proba, (truth.loc[answers.index] == "malignant").to_numpy(dtype=int))


def test_the_python_example(capsys: pytest.CaptureFixture[str]) -> None:
    code = block("## In Python", "python", README)
    exec(compile(code, "README.md", "exec"), {})
    expected = README.partition(code)[2].split("```")[2].removeprefix("\n")
    assert capsys.readouterr().out == expected
    assert len([line for line in code.splitlines() if line]) <= 12
