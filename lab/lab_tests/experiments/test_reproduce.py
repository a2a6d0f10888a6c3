"""`xvfl-lab reproduce`: files of a figure from its runs, and who is ahead."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from lab_tests.command_line import error_of, xvfl_lab
from lab_tests.experiments.test_stacked_runs import small_task
from xvfl.config import NetConfig
from xvfl.errors import InputError, RunError
from xvfl_lab.experiments import figures, plots, reproduce, results_pages
from xvfl_lab.experiments.compare import difference
from xvfl_lab.experiments.figures import QUICK, Budget
from xvfl_lab.experiments.results_pages import write_pages
from xvfl_lab.experiments.runner import Result
from xvfl_lab.task import Task

TINY = Budget(0, 0, 1, 2, (0.5, 0.9), 32, 1e-2, NetConfig(embedding_dim=4, hidden_dim=4))


@pytest.fixture
def bank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a small task in the place of Bank, with small budgets."""
    monkeypatch.setattr(reproduce, "prepared", lambda name, parties: small_task())
    monkeypatch.setitem(figures.FULL, "bank", TINY)
    monkeypatch.setitem(QUICK, "bank", replace(TINY, seeds=1))


def test_a_figure_its_files_and_its_page(bank: None, tmp_path: Path) -> None:
    request = reproduce.Request("missing-rates", "bank", False, tmp_path, "cpu", 1)
    told: list[tuple[int, int, str]] = []
    written = reproduce.reproduce(request, lambda *said: told.append(said))
    assert told[0] == (0, 32, "cached") and told[-1][:2] == (32, 32)
    assert all(path.exists() for path in written) and {p.suffix for p in written} == {
        ".png",
        ".json",
        ".md",
    }
    numbers = json.loads((tmp_path / "missing-rates" / "bank.json").read_text())
    ways = {(row["method"], row["way"]) for row in numbers["numbers"]}
    for method in figures.METHODS:
        assert (method, "local") in ways
    assert ("xvfl+", "assisted") in ways and ("xvfl+", "peers") in ways
    assert ("laser", "assisted") not in ways
    assert {each["rival"] for each in numbers["standing"]} >= {"laser+mask", "peers alone"}
    again: list[tuple[int, int, str]] = []
    reproduce.reproduce(request, lambda *said: again.append(said))
    assert again == [(32, 32, "cached")]
    pages = tmp_path / "pages"
    summary = write_pages(tmp_path, pages).read_text()
    assert "(standings.png)" in summary and (pages / "standings.png").stat().st_size > 10_000
    assert "[P6]" in summary and "**open**" in summary and "(missing-rates.md)" in summary
    assert "| bank | level: " in (pages / "standings.md").read_text()
    page = (pages / "missing-rates.md").read_text()
    assert "(missing-rates/missing-rates.png)" in page and "[P1](claims.md#p1)" in page
    assert page.count("| laser+mask |") == 1 and "[Complete tables]" in page
    assert (pages / "missing-rates" / "missing-rates.png").exists()
    tables = (tmp_path / "missing-rates" / "missing-rates.md").read_text()
    assert tables.count("| laser+mask |") > 5 and "## bank" in tables
    assert "## P1" in (tmp_path / "claims" / "claims.md").read_text()


def test_other_data_are_other_runs(
    bank: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = reproduce.Request("mode-gap", "bank", False, tmp_path, "cpu", 1)
    reproduce.reproduce(request, lambda *_: None)
    task = small_task()
    other = replace(task, y=task.y[::-1].copy())
    monkeypatch.setattr(reproduce, "prepared", lambda name, parties: other)
    told: list[tuple[int, int, str]] = []
    reproduce.reproduce(request, lambda *said: told.append(said))
    assert told[0] == (0, 16, "cached")

    def gone(name: str, parties: int) -> Task:
        raise InputError("not here")

    monkeypatch.setattr(reproduce, "prepared", gone)
    told.clear()
    reproduce.reproduce(request, lambda *said: told.append(said))
    assert told == [(16, 16, "cached")], "what is whole is drawn without the data"


def test_one_seed_has_no_errors_to_tell(bank: None, tmp_path: Path) -> None:
    request = reproduce.Request("mode-gap", "bank", True, tmp_path, "cpu", 1)
    reproduce.reproduce(request, lambda *_: None)
    for ending in ("json", "md"):
        assert "nan" not in (tmp_path / "mode-gap" / f"bank-quick.{ending}").read_text().lower()
    with pytest.raises(RunError, match="no complete figure"):
        write_pages(tmp_path, tmp_path / "pages")


def test_differences_are_told_at_every_overlap(bank: None, tmp_path: Path) -> None:
    request = reproduce.Request("overlap", "bank", False, tmp_path, "cpu", 1)
    reproduce.reproduce(request, lambda *_: None)
    stands = json.loads((tmp_path / "overlap" / "bank.json").read_text())["standing"]
    assert {each["at"] for each in stands} == {"overlap 0.2", "overlap 0.4", "overlap 0.8"}
    results = request.store().get(request.jobs())
    for share in (0.2, 0.4, 0.8):
        some = [each for each in results if each.config.overlap == share]
        gap = difference(some, ("xvfl+", "local"), ("laser", "local"), 0.5, "auroc")
        said = [
            each["gap"]["mean"]
            for each in stands
            if (each["at"], each["mode"], each["rival"]) == (f"overlap {share}", "local", "laser")
        ]
        assert said == [gap.mean]
    page = (tmp_path / "overlap" / "bank.md").read_text()
    assert "points at overlap 0.2, ± standard error" in page


def test_four_parties_tell_their_own_budget(tmp_path: Path) -> None:
    request = reproduce.Request("four-parties", "cifar10", False, tmp_path)
    jobs = request.jobs()
    one = Result(jobs[0].config, {"local": {"accuracy": 0.5}}, 1.0, 0.1)
    budget = reproduce.describe(request, [one], jobs, request.store())["budget"]
    assert (budget["train_rows"], budget["test_rows"]) == (8_000, 4_000)
    assert (budget["train"]["epochs"], budget["train"]["batch_size"]) == (10, 100)


def test_the_published_pages_are_what_the_command_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(__file__).resolve().parents[3]
    numbers, pages = root / "lab" / "results", root / "docs" / "results"
    shutil.copytree(numbers, tmp_path / "numbers", ignore=shutil.ignore_patterns("*.npz"))
    shutil.copytree(pages, tmp_path / "pages", ignore=shutil.ignore_patterns("*.md"))
    monkeypatch.setattr(results_pages, "save_picture", lambda *_: None)
    monkeypatch.setattr(plots, "overview", lambda *_: None)
    write_pages(tmp_path / "numbers", tmp_path / "pages")
    kinds = ((numbers, "numbers", "json"), (numbers, "numbers", "md"), (pages, "pages", "md"))
    for folder, copy, ending in kinds:
        published = sorted(folder.rglob(f"*.{ending}"))
        assert len(published) > 10
        for path in published:
            written = tmp_path / copy / path.relative_to(folder)
            assert written.read_text() == path.read_text(), path
    words = {path.stem: len(path.read_text().split()) for path in pages.glob("*.md")}
    assert sum(words.values()) < 8_000
    assert max(n for name, n in words.items() if name not in ("claims", "index")) < 450


def test_the_command_lists_and_refuses(tmp_path: Path) -> None:
    assert "missing-rates" in xvfl_lab("reproduce", "--list").out
    assert "--list" in error_of("reproduce")
    assert "--dataset" in error_of("reproduce", "overlap")
    assert "missing-rates" in error_of("reproduce", "missing-rate", "--dataset", "bank")
    assert "tinyimagenet5" in error_of("reproduce", "overlap", "--dataset", "tinyimagenet")
    assert "cuda" in error_of("reproduce", "overlap", "--dataset", "bank", "--device", "gpu")
    new = tmp_path / "new"
    assert "trees, report" in error_of("reproduce", "nothing", "--out", new)
    assert (
        "no complete figure" in error_of("reproduce", "report", "--out", new) and not new.exists()
    )
    assert "leave out --dataset" in error_of("reproduce", "rounds", "--dataset", "bank")
    (tmp_path / "file").touch()
    for figure in (("mode-gap", "--dataset", "bank"), ("rounds",), ("report",)):
        assert "--out" in error_of("reproduce", *figure, "--out", tmp_path / "file")


@pytest.mark.skipif("XVFL_DATA" not in os.environ, reason="XVFL_DATA does not name the data")
def test_bank_from_the_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = Budget(300, 200, 1, 1, (0.9,), 64, 1e-2, NetConfig(embedding_dim=4, hidden_dim=4))
    monkeypatch.setitem(QUICK, "bank", small)
    monkeypatch.setenv("XVFL_CACHE", str(tmp_path / "cache"))
    said = xvfl_lab(
        "reproduce", "mode-gap", "--dataset", "bank", "--quick", "--workers", 1, "--out", tmp_path
    )
    assert said.code == 0, said
    assert (tmp_path / "mode-gap" / "bank-quick.png").stat().st_size > 5000
