"""`xvfl-lab digits`: the comparison, its report, and its worker processes."""

import json
import re
import sys
from pathlib import Path

import pytest

from lab_tests.command_line import error_of as rejected_with
from lab_tests.command_line import xvfl_lab as run_lab
from tests.processes import run_python
from tests.small_tables import is_png
from xvfl_lab import digits_comparison

QUICK = {
    "epochs": 1,
    "batch_size": 512,
    "embedding_dim": 8,
    "hidden_dim": 8,
    "members": 1,
    "device": "cpu",
    "verbose": False,
}


RESULTS: dict[str, digits_comparison.Result] = {}
"""Results of jobs that a test has run."""


def run_once(job: digits_comparison.Job) -> digits_comparison.Result:
    """Run a job, or return its earlier result."""
    if repr(job) not in RESULTS:
        RESULTS[repr(job)] = digits_comparison.run_job(job)
    return RESULTS[repr(job)]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train for one epoch, in this process."""
    monkeypatch.setattr(digits_comparison, "PARAMETERS", QUICK)
    monkeypatch.setattr(
        digits_comparison, "run_jobs", lambda jobs, workers, console: [*map(run_once, jobs)]
    )


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_digits_writes_a_self_contained_report(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    result = run_lab("digits", "--out", out, "--rates", "0.5", "--seeds", "2")
    assert result.code == 0, result.err
    assert "paired differences" in result.out
    page = (out / "report.html").read_text()
    sources = re.findall(r"""(?:src|href)\s*=\s*["']([^"']{0,30})""", page)
    assert len(sources) == 2 and all(each.startswith("data:image/png;base64,") for each in sources)
    assert not re.search(r"https?://|<script|@import|url\(", page)
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["command"] == "xvfl-lab digits --seeds 2 --first-seed 0 --rates 0.5"
    assert set(metrics["accuracy"]) == set(digits_comparison.ROWS)
    assert len(metrics["runs"]) == 2 * len(digits_comparison.MODES)
    assert {line["verdict"] for line in metrics["differences"]} <= {"ahead", "behind", "level"}
    assert is_png(out / "accuracy.png") and is_png(out / "completed.png")


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_digits_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = run_lab("digits", "--out", tmp_path, "--rates", "0.5")
    assert result.code == 0, result.err
    assert "plots need matplotlib: pip install 'xvfl[plots]'" in result.out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.json", "report.html"]
    assert "<img" not in (tmp_path / "report.html").read_text()


def test_paired_differences_are_taken_by_seed() -> None:
    def result(method: str, seed: int, accuracy: float) -> digits_comparison.Result:
        metrics = {mode: {"accuracy": accuracy} for mode in digits_comparison.MODES[method]}
        return digits_comparison.Result(method, 0.5, seed, 1.0, metrics)

    better = {0: 0.9, 1: 0.7, 2: 0.8}
    results = [
        result(method, seed, accuracy - (0.0 if method == "xvfl+" else 0.1 + seed / 100))
        for method in digits_comparison.MODES
        for seed, accuracy in better.items()
    ]
    for line in digits_comparison.paired_differences(results, [0.5]):
        assert line["mean"] == pytest.approx(0.11) and line["verdict"] == "ahead"
        assert line["error"] == pytest.approx(0.01 / 3**0.5)


@pytest.mark.slow
def test_digits_in_worker_processes() -> None:
    """Spawned worker processes receive the parameters of the parent."""
    script = (
        "from rich.console import Console\n"
        "from xvfl_lab import digits_comparison as demo\n"
        "if __name__ == '__main__':\n"
        f"    demo.PARAMETERS = {QUICK!r}\n"
        "    jobs = demo.list_jobs(1, (0.5,))[2:]\n"
        "    results = demo.run_jobs(jobs, 2, Console(quiet=True))\n"
        "    print([(each.method, sorted(each.metrics)) for each in results])\n"
    )
    done = run_python("-c", script)
    assert (
        done.stdout == "[('laser+mask', ['collaborative', 'local']), ('standalone', ['local'])]\n"
    ), done.stderr


@pytest.mark.parametrize("rates", ["x", "2", "0.1,,0.2"])
def test_digits_rejects_bad_rates(rates: str, tmp_path: Path) -> None:
    message = rejected_with("digits", "--out", tmp_path / "demo", "--rates", rates)
    assert "--rates: expected numbers from 0 to 1" in message
    assert not (tmp_path / "demo").exists()
