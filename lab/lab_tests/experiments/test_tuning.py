"""Equal tuning: which settings are tried and chosen, and what the tables count."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from xvfl.config import LAMBDA_RANGES
from xvfl_lab.experiments import tuning
from xvfl_lab.experiments.claims import BASELINES, PAPER
from xvfl_lab.experiments.figures import OURS
from xvfl_lab.experiments.plot_tuning import plot
from xvfl_lab.experiments.tuning import DEFAULT, GRID, best, search, tables

CPU = torch.device("cpu")


def no_data(name: str, parties: int) -> Any:
    raise AssertionError("needs no data")


@pytest.mark.parametrize("dataset", tuning.TABLES)
def test_lambda1_is_chosen_before_lambda2(
    dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tuning.lambda_ranges(dataset)
    target = {"lambda1": first[1], "lambda2": second[-1]}

    def scores(*args: Any) -> list[float]:
        settings: Sequence[tuning.Setting] = args[4]
        return [-sum(abs(each[name] / target[name] - 1) for name in target) for each in settings]

    monkeypatch.setattr(tuning, "validation_scores", scores)
    trials = search(tmp_path, no_data, dataset, PAPER, CPU)
    assert best(trials) == target
    tried = [(each["lambda1"], each["lambda2"]) for each in trials]
    assert len(set(tried)) == len(tried) == len(first) + len(second) - 1 <= len(GRID)
    assert {a for a, _ in tried} == set(first) and {b for _, b in tried} == set(second)


def test_physionet_has_the_ranges_of_mimic() -> None:
    assert tuning.lambda_ranges("physionet2012") == LAMBDA_RANGES["mimic3"]


def runs(**scores: float) -> list[dict[str, Any]]:
    return [
        {
            "method": method,
            "rate": 0.5,
            "seed": seed,
            "local": score + seed / 1000,
            "collaborative": score + seed / 1000 + 0.1,
            **({"assisted": score + 0.05} if method in (PAPER, DEFAULT, OURS) else {}),
        }
        for method, score in scores.items()
        for seed in range(3)
    ]


def test_the_tables_count_the_cases_and_the_change() -> None:
    rivals = dict.fromkeys(BASELINES, 0.6)
    of_set = runs(**rivals, **{PAPER: 0.7, DEFAULT: 0.69, OURS: 0.5})
    trials = {PAPER: [{"lambda1": 0.1, "lambda2": 1e-5, "score": -1.0}]}
    text = "\n".join(tables({"bank": {"trials": trials, "runs": of_set}}))
    assert "| bank | xvfl | 1 | λ1 0.1, λ2 1e-05 |" in text
    ahead, behind = "1 ahead, 1 best, 0 behind of 1", "0 ahead, 0 best, 1 behind of 1"
    assert f"| all | {ahead} | {ahead} | {ahead} |" in text
    assert f"| all | {behind} | {behind} | {behind} |" in text
    assert "| bank | 0.5 | +1.00 ± 0.00, ahead |" in text


def test_the_quick_figure_is_computed_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "GRID", GRID[:2])
    with torch.random.fork_rng(devices=[]):
        record = tuning.make(tmp_path, True, CPU, no_data, lambda text: None)
    of_set = record["figures"]["digits"]
    assert set(of_set["trials"]) == {PAPER, *BASELINES}
    assert len(of_set["trials"]["vanilla"]) == 2 and len(of_set["trials"][PAPER]) == 3
    assert {run["method"] for run in of_set["runs"]} == {PAPER, DEFAULT, OURS, *BASELINES}
    assert min(run["local"] for run in of_set["runs"]) > 0.5
    assert len(plot(record["figures"], {}).axes) == 2
    assert "| digits | vanilla | 2 |" in (tmp_path / "tuning.md").read_text(encoding="utf-8")
