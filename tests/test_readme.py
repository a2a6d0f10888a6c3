"""What the README shows runs word for word."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from tests.small_tables import SOURCE
from xvfl.primitives.metrics import auroc

ROOT = SOURCE.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
DATA = Path(os.environ.get("XVFL_DATA", ROOT.parent / "shared" / "data"))


def block(after: str, language: str) -> str:
    """Take the first code block of a language after some words."""
    found = re.search(rf"```{language}\n(.*?)```", README[README.index(after) :], re.DOTALL)
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
@pytest.mark.skipif(not (DATA / "tabular").is_dir(), reason="XVFL_DATA: no data folder")
def test_the_walk_through(path: str, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block("walk-through", "bash")],
        cwd=work,
        env={"PATH": path, "PYTHONPATH": str(SOURCE), "XVFL_DATA": str(DATA.resolve())},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "collaborative" in done.stdout and "trained 5 epochs" in done.stdout
    bank = pd.read_csv(work / "bank.csv")
    agency = pd.read_parquet(work / "agency.parquet")
    truth = bank.set_index("customer")["y"]
    together, assisted, alone = (
        pd.read_csv(work / name, keep_default_na=False).set_index("id")
        for name in ("together.csv", "assisted.csv", "alone.csv")
    )
    assert len(together) == len(assisted) == 45_211
    assert len(alone) == len(agency) == 22_606
    assert set(together["mode"]) == {"collaborative"} and set(alone["mode"]) == {"local"}
    assert set(assisted["mode"]) == {"assisted", "local"}
    assert set(alone["parties"]) == {"agency"}
    assert set(together["parties"]) == {"bank", "bank+agency"}
    area = {name: _auroc(each, truth) for name, each in _named(together, assisted, alone).items()}
    both = _auroc(together.loc[alone.index], truth)
    assert both > area["alone"] > 0.6, "two parties know more than one, on the rows of both"
    assert area["together"] > 0.6 and area["assisted"] > 0.6
    assert sum(together["prediction"] == "yes") < len(together) / 2
    for name in ("curves.png", "evaluation.png", "evaluation.json"):
        assert (work / "run" / name).stat().st_size > 0


def _named(*answers: pd.DataFrame) -> dict[str, pd.DataFrame]:
    return dict(zip(("together", "assisted", "alone"), answers, strict=True))


def _auroc(answers: pd.DataFrame, truth: pd.Series) -> float:
    proba = answers[["proba_no", "proba_yes"]].to_numpy(dtype=float)
    return auroc(proba, (truth.loc[answers.index] == "yes").to_numpy(dtype=int))


def test_the_python_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(block("## In Python", "python"), "README.md", "exec"), names)
    assert (tmp_path / "model" / "manifest.json").is_file()
    model, bank, shop = (names[name] for name in ("model", "bank", "shop"))
    together = model.predict_proba({"bank": bank, "shop": shop})  # type: ignore[attr-defined]
    assert together.shape == (120, 2)
    assert len(model.predict_proba({"shop": shop})) == 80  # type: ignore[attr-defined]
