"""`xvfl demo`: its data, its page, and what it compares."""

import json
import re
import sys
from pathlib import Path

import pytest

from tests.command_line import run_xvfl
from tests.small_tables import is_png
from xvfl.cli import demo_digits
from xvfl.cli.demo_data import PARTIES, digits_with_gaps

QUICK = {
    "epochs": 1,
    "batch_size": 512,
    "embedding_dim": 8,
    "hidden_dim": 8,
    "members": 1,
    "device": "cpu",
    "verbose": False,
}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train for one epoch, and fill no cells, which takes longest."""
    monkeypatch.setattr(demo_digits, "PARAMETERS", QUICK)
    monkeypatch.setattr(
        demo_digits,
        "complete_some",
        lambda model, test: {
            kind: test.take(test.y.index[:8]).complete["left"].to_numpy().reshape(-1, 8, 4) / 16
            for kind in ("true", "observed", "completed")
        },
    )


@pytest.mark.usefixtures("quick")
def test_demo_writes_a_self_contained_page(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    result = run_xvfl("demo", "--out", out)
    assert result.code == 0, result.err
    page = (out / "report.html").read_text()
    sources = re.findall(r"""(?:src|href)\s*=\s*["']([^"']{0,30})""", page)
    assert len(sources) == 2 and all(each.startswith("data:image/png;base64,") for each in sources)
    assert not re.search(r"https?://|<script|@import|url\(", page)
    accuracy = json.loads((out / "metrics.json").read_text())["accuracy"]
    assert [each["party"] for each in accuracy] == [*PARTIES, *PARTIES, "both"]
    assert all(f"{each['value']:.1%}" in page and each["name"] in page for each in accuracy)
    assert is_png(out / "accuracy.png") and is_png(out / "completed.png")


@pytest.mark.usefixtures("quick")
def test_demo_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = run_xvfl("demo", "--out", tmp_path)
    assert result.code == 0, result.err
    assert "plots need matplotlib: pip install 'xvfl[plots]'" in result.out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.json", "report.html"]
    assert "<img" not in (tmp_path / "report.html").read_text()


@pytest.mark.slow
def test_both_parties_predict_better_than_each_alone(tmp_path: Path) -> None:
    assert run_xvfl("demo", "--out", tmp_path / "demo").code == 0
    found = json.loads((tmp_path / "demo" / "metrics.json").read_text())["accuracy"]
    (together,) = (each["value"] for each in found if each["party"] == "both")
    assert together > 0.1 + max(each["value"] for each in found if each["party"] != "both")


def test_gaps_follow_the_rate_and_the_overlap() -> None:
    train, test = digits_with_gaps(0.5, 0.4, 0.3, seed=1)
    assert (len(train.y), len(test.y)) == (1258, 539)
    assert (train.incomplete.sum(axis=1) == 0).mean() == pytest.approx(0.4, abs=1e-3)
    assert (test.incomplete.sum(axis=1) == 1).all()
    for rows in (train, test):
        for name, table in rows.observed.items():
            missing = table.isna().sum(axis=1)
            assert set(missing[rows.incomplete[name]]) == {16}
            assert set(missing[~rows.incomplete[name]]) == {0}
            assert table.fillna(rows.complete[name]).equals(rows.complete[name])
    none, _ = digits_with_gaps(0.0, 0.4, 0.3, seed=1)
    assert none.y.equals(train.y) and none.incomplete.equals(train.incomplete)
