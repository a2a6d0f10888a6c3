"""`xvfl reproduce`: files of a figure from its runs, and who is ahead."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from xvfl_lab.experiments import jobs as figures
from xvfl_lab.experiments import reproduce
from xvfl_lab.experiments.compare import Difference, difference, standings
from xvfl_lab.experiments.jobs import QUICK, Budget
from xvfl_lab.experiments.results_page import write_page
from xvfl_lab.experiments.runner import Result
from xvfl_lab.task import Task

from lab_tests.experiments.test_many import small_task
from tests.small_tables import rejected_with, run_xvfl
from xvfl.config import NetConfig
from xvfl.errors import InputError, RunError

TINY = Budget(0, 0, 1, 2, (0.0, 0.5, 0.9, 1.0), 32, 1e-2, NetConfig(embedding_dim=4, hidden_dim=4))


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
    assert told[0] == (0, 64, "found") and told[-1][:2] == (64, 64)
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
    assert again == [(64, 64, "found")]
    page = write_page(tmp_path).read_text()
    assert "| bank | local |" in page and "missing-rates/bank.png" in page
    assert "(standings.png)" in page and (tmp_path / "standings.png").stat().st_size > 10_000
    assert "n/a" in page and "P6" in page and "| open |" in page


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
    assert told[0] == (0, 16, "found")

    def gone(name: str, parties: int) -> Task:
        raise InputError("not here")

    monkeypatch.setattr(reproduce, "prepared", gone)
    told.clear()
    reproduce.reproduce(request, lambda *said: told.append(said))
    assert told == [(16, 16, "found")], "what is whole is drawn without the data"


def test_one_seed_has_no_errors_to_tell(bank: None, tmp_path: Path) -> None:
    request = reproduce.Request("mode-gap", "bank", True, tmp_path, "cpu", 1)
    reproduce.reproduce(request, lambda *_: None)
    for ending in ("json", "md"):
        assert "nan" not in (tmp_path / "mode-gap" / f"bank-quick.{ending}").read_text().lower()
    with pytest.raises(RunError, match="no figure is whole"):
        write_page(tmp_path)


def test_differences_are_told_at_every_overlap(bank: None, tmp_path: Path) -> None:
    request = reproduce.Request("overlap", "bank", False, tmp_path, "cpu", 1)
    reproduce.reproduce(request, lambda *_: None)
    stands = json.loads((tmp_path / "overlap" / "bank.json").read_text())["standing"]
    assert {each["at"] for each in stands} == {"overlap 0.2", "overlap 0.4", "overlap 0.8"}
    results = request.store().get(request.jobs())
    for share in (0.2, 0.4, 0.8):
        some = [each for each in results if each.setting.overlap == share]
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
    one = Result(jobs[0].setting, {"local": {"accuracy": 0.5}}, 1.0, 0.1)
    budget = reproduce.about(request, [one], jobs, request.store())["budget"]
    assert (budget["train_rows"], budget["test_rows"]) == (8_000, 4_000)
    assert (budget["train"]["epochs"], budget["train"]["batch"]) == (10, 100)


def test_the_published_page_is_what_the_command_writes(tmp_path: Path) -> None:
    published = Path(__file__).resolve().parents[2] / "results"
    shutil.copytree(published, tmp_path / "results")
    # Arrays for pictures need not be there, and those of CIFAR-10's images are not published.
    for path in (tmp_path / "results" / "RESULTS.md", *(tmp_path / "results").rglob("*.npz")):
        path.unlink()
    assert write_page(tmp_path / "results").read_text() == (published / "RESULTS.md").read_text()


def test_holm_raises_the_bar_with_the_number_of_rivals() -> None:
    clear, near, none = Difference(1.0, 0.1), Difference(0.21, 0.1), Difference(0.1, 0.1)
    assert standings({"a": near}) == {"a": "ahead"}
    assert standings({"a": near, "b": none}) == {"a": "level", "b": "level"}
    assert standings({"a": near, "b": clear}) == {"a": "ahead", "b": "ahead"}
    behind = Difference(-1.0, 0.1)
    assert standings({"a": behind, "b": clear, "c": none}) == {
        "a": "behind",
        "b": "ahead",
        "c": "level",
    }


def test_the_command_lists_and_refuses(tmp_path: Path) -> None:
    assert "missing-rates" in run_xvfl("reproduce", "--list").out
    assert "--list" in rejected_with("reproduce")
    assert "--dataset" in rejected_with("reproduce", "overlap")
    assert "missing-rates" in rejected_with("reproduce", "missing-rate", "--dataset", "bank")
    assert "tinyimagenet5" in rejected_with("reproduce", "overlap", "--dataset", "tinyimagenet")
    assert "cuda" in rejected_with("reproduce", "overlap", "--dataset", "bank", "--device", "gpu")
    new = tmp_path / "new"
    assert "rounds, report" in rejected_with("reproduce", "nothing", "--out", new)
    assert "no figure" in rejected_with("reproduce", "report", "--out", new) and not new.exists()
    assert "leave out --dataset" in rejected_with("reproduce", "rounds", "--dataset", "bank")
    (tmp_path / "file").touch()
    for figure in (("mode-gap", "--dataset", "bank"), ("rounds",), ("report",)):
        assert "--out" in rejected_with("reproduce", *figure, "--out", tmp_path / "file")


@pytest.mark.skipif("XVFL_DATA" not in os.environ, reason="XVFL_DATA does not name the data")
def test_bank_from_the_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = Budget(300, 200, 1, 1, (0.9,), 64, 1e-2, NetConfig(embedding_dim=4, hidden_dim=4))
    monkeypatch.setitem(QUICK, "bank", small)
    monkeypatch.setenv("XVFL_CACHE", str(tmp_path / "cache"))
    said = run_xvfl(
        "reproduce", "mode-gap", "--dataset", "bank", "--quick", "--workers", 1, "--out", tmp_path
    )
    assert said.code == 0, said
    assert (tmp_path / "mode-gap" / "bank-quick.png").stat().st_size > 5000
