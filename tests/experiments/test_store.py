"""Jobs and their results on disk."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.experiments.test_many import small_task
from xvfl.config import NetConfig
from xvfl.data.task import Task, save_task
from xvfl.errors import ConfigError
from xvfl.experiments.execute import execute, load_from, subset
from xvfl.experiments.jobs import FIGURES, QUICK, Budget, budget_of, jobs, missing_rates
from xvfl.experiments.store import Store, key

TINY = Budget(0, 0, 1, 1, (0.5,), 32, 1e-2, NetConfig(embedding=4, hidden=4))


def load(name: str, parties: int) -> Task:
    return small_task()


@pytest.mark.parametrize("figure", FIGURES)
@pytest.mark.parametrize("dataset", ["bank", "cifar10"])
def test_jobs_of_a_figure_are_distinct(figure: str, dataset: str) -> None:
    made = FIGURES[figure](dataset, budget_of(dataset, quick=False))
    assert made and len({key(job) for job in made}) == len(made)


def test_figures_share_their_runs() -> None:
    budget = budget_of("bank", quick=False)
    rates = {key(job) for job in FIGURES["missing-rates"]("bank", budget)}
    assert {key(job) for job in FIGURES["mode-gap"]("bank", budget)} <= rates
    some = {key(job) for job in FIGURES["ablations"]("bank", budget)}
    assert len(some & rates) == 2 * budget.seeds


def test_a_key_changes_with_what_decides_the_result_alone() -> None:
    job = missing_rates("bank", QUICK["bank"])[0]
    assert key(job) == key(replace(job))
    for other in (
        replace(job, dataset="avazu"),
        replace(job, train_rows=1),
        replace(job, setting=replace(job.setting, rate=0.25)),
        replace(job, setting=replace(job.setting, loss=replace(job.setting.loss, masks=3))),
    ):
        assert key(other) != key(job)


def test_results_are_found_again_and_nothing_runs_twice(tmp_path: Path) -> None:
    todo = jobs("small", TINY, rates=(0.5,), methods=("laser", "vanilla"))
    path, told = tmp_path / "runs" / "small.jsonl", []
    execute(todo[:1], Store(path), load, "cpu", 1, lambda *said: told.append(said))
    again = Store(path)
    assert again.missing(todo) == todo[1:] and told == [(1, 1, "laser at 0.5")]
    execute(again.missing(todo), again, load, "cpu", 1, lambda *_: None)
    found = Store(path).get(todo)
    assert [each.setting for each in found] == [job.setting for job in todo]
    assert 0 <= found[0].metrics["local"]["accuracy"] <= 1


def test_a_line_cut_short_is_run_again_and_harms_no_other(tmp_path: Path) -> None:
    todo = jobs("small", TINY, rates=(0.5, 0.9), methods=("laser",))
    path = tmp_path / "small.jsonl"
    execute(todo, Store(path), load, "cpu", 1, lambda *_: None)
    whole = path.read_text()
    path.write_text(whole[:-30])
    store = Store(path)
    assert store.missing(todo) == todo[1:]
    execute(todo[1:], store, load, "cpu", 1, lambda *_: None)
    assert not Store(path).missing(todo)
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
    assert len(lines) == 2


def test_processes_give_what_one_gives(tmp_path: Path) -> None:
    save_task(small_task(), tmp_path / "small-2.npz")
    todo = jobs("small", TINY, rates=(0.5, 0.9), methods=("laser",))
    load_ = partial(load_from, tmp_path)
    one, two = Store(tmp_path / "one.jsonl"), Store(tmp_path / "two.jsonl")
    execute(todo, one, load_, "cpu", 1, lambda *_: None)
    execute(todo, two, load_, "cpu", 2, lambda *_: None)
    assert [each.metrics for each in one.get(todo)] == [each.metrics for each in two.get(todo)]


def test_subsets_keep_training_and_test_rows_apart() -> None:
    task = small_task()
    part = subset(task, 30, 10)
    assert part.test is not None
    assert (len(part), int(part.test.sum())) == (40, 10)
    assert len(subset(task, 0, 0)) == len(task)


def test_an_unknown_data_set_is_named_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="bank"):
        budget_of("banc", quick=True)
