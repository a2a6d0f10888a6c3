"""Tuning: which settings are tried and chosen, and what the tables and pages count."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from xvfl_lab.datasets.digits import digits
from xvfl_lab.experiments import tuning
from xvfl_lab.experiments.claims import BASELINES, LAMBDA_RANGES, PAPER, Evidence
from xvfl_lab.experiments.figures import OURS, Job
from xvfl_lab.experiments.plot_tuning import plot
from xvfl_lab.experiments.results_pages import _tuning_text
from xvfl_lab.experiments.tuning import GRID, Search, Setting
from xvfl_lab.experiments.tuning_tables import UNTUNED, best_setting, results_of, tables
from xvfl_lab.task import Task

CPU = torch.device("cpu")


def load_digits(name: str, parties: int) -> Task:
    return digits()


@pytest.mark.parametrize("dataset", tuning.TABLES)
def test_lambda1_is_chosen_before_lambda2(
    dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tuning.lambda_ranges(dataset)
    target = {"lambda1": first[1], "lambda2": second[-1]}

    def scores(
        search: Search, dataset: str, method: str, settings: Sequence[Setting]
    ) -> list[float]:
        return [-sum(abs(each[name] / target[name] - 1) for name in target) for each in settings]

    monkeypatch.setattr(Search, "validation_scores", scores)
    trials = Search(tmp_path, load_digits, CPU).run_trials(dataset, PAPER)
    assert best_setting(trials) == target
    before, after = trials[: len(first)], trials[len(first) :]
    assert [each["lambda1"] for each in before] == list(first)
    (middle,) = {each["lambda2"] for each in before}
    assert {each["lambda1"] for each in after} == {target["lambda1"]}
    assert {each["lambda2"] for each in after} == set(second) - {middle}
    assert len(trials) in (len(GRID), len(GRID) - 1), "as many trials as a baseline, or one fewer"


@pytest.mark.parametrize("method", ["vanilla", PAPER])
def test_each_setting_gets_the_mean_score_of_its_seeds(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def score(job: Job) -> float:
        config = job.config
        options = config.train.learning_rate + config.train.weight_decay
        return options + 10 * float(config.loss.lambda1) + config.seed  # type: ignore[arg-type]

    def score_group(search: Search, jobs: Sequence[Job]) -> list[float]:
        return [score(each) for each in jobs]

    monkeypatch.setattr(Search, "score_group", score_group)
    settings: Sequence[Setting] = GRID
    if method == PAPER:
        settings = [{"lambda1": each, "lambda2": 0.5} for each in (3.0, 1.0, 2.0)]
    scores = Search(tmp_path, load_digits, CPU).validation_scores("digits", method, settings)
    expected = [
        sum(each.values()) if method != PAPER else 10 * each["lambda1"] for each in settings
    ]
    gaps = [a - b for a, b in zip(scores, expected, strict=True)]
    assert gaps == pytest.approx([gaps[0]] * len(gaps), abs=1e-5)


def test_physionet_has_the_ranges_of_mimic() -> None:
    assert tuning.lambda_ranges("physionet2012") == LAMBDA_RANGES["mimic3"]


def test_the_figure_depends_on_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    before = tuning.figure_config(["bank"])
    monkeypatch.setattr(tuning, "GRID", GRID[:3])
    assert tuning.figure_config(["bank"]) != before


def some_runs(**scores: float) -> list[dict[str, Any]]:
    return [
        {
            "method": method,
            "rate": 0.5,
            "seed": seed,
            "local": score + seed / 1000,
            "collaborative": score + seed / 1000 + 0.1,
            **({"assisted": score + 0.05} if method in (PAPER, UNTUNED, OURS) else {}),
        }
        for method, score in scores.items()
        for seed in range(3)
    ]


RIVALS = dict.fromkeys(BASELINES, 0.6)
FIGURES = {
    "bank": {
        "trials": {PAPER: [{"lambda1": 0.1, "lambda2": 1e-5, "score": -1.0}]},
        "runs": some_runs(**RIVALS, **{PAPER: 0.7, UNTUNED: 0.69, OURS: 0.5}),
    }
}


def test_the_tables_count_the_cases_and_the_change() -> None:
    text = "\n".join(tables(FIGURES))
    assert "| bank | xvfl | 1 | λ1 0.1, λ2 1e-05 |" in text
    ahead, behind = "1 ahead, 1 best, 0 behind of 1", "0 ahead, 0 best, 1 behind of 1"
    assert text.count(f"| all | {ahead} | {ahead} | {ahead} |") == 2
    assert f"| all | {behind} | {behind} | {behind} |" in text
    assert "| bank | 0.5 | +1.00 ± 0.00, ahead |" in text


def test_the_page_of_claims_compares_with_the_untuned_runs() -> None:
    untuned = results_of("bank", some_runs(**RIVALS, **{PAPER: 0.5}))
    text = _tuning_text(Evidence({("missing-rates", "bank"): untuned}, {"tuning": FIGURES}))
    assert "(untuned baselines: 0 ahead, 0 best, 2 behind of 2)" in text
    assert "2 ahead, 2 best, 0 behind of 2 with λ chosen" in text
    assert _tuning_text(Evidence({}, {"tuning": FIGURES})) == ""
    assert _tuning_text(Evidence({("missing-rates", "bank"): untuned})) == ""


def test_the_quick_figure_is_computed_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "GRID", GRID[:2])
    with torch.random.fork_rng(devices=[]):
        record = tuning.make(tmp_path, True, CPU, load_digits, lambda text: None)
    of_set = record["figures"]["digits"]
    assert set(of_set["trials"]) == {PAPER, *BASELINES}
    assert len(of_set["trials"]["vanilla"]) == 2 and len(of_set["trials"][PAPER]) == 3
    assert {run["method"] for run in of_set["runs"]} == {PAPER, UNTUNED, OURS, *BASELINES}
    assert min(run["local"] for run in of_set["runs"]) > 0.5
    assert len(plot(record["figures"], {}).axes) == 2
    assert "| digits | vanilla | 2 |" in (tmp_path / "tuning.md").read_text(encoding="utf-8")
