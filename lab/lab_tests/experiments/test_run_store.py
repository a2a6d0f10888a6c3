"""Jobs and their results on disk."""

import json
import subprocess
import sys
from dataclasses import replace
from functools import partial
from multiprocessing import active_children
from pathlib import Path

import numpy as np
import pytest

from lab_tests.experiments.test_stacked_runs import small_task
from xvfl.config import NetConfig
from xvfl.errors import ConfigError
from xvfl_lab.experiments.dispatch import hardware, in_processes, in_this_process, on_ray, subset
from xvfl_lab.experiments.execute import choose_dispatch, execute, load_from
from xvfl_lab.experiments.figures import (
    FIGURES,
    QUICK,
    Budget,
    budget_for,
    make_jobs,
    missing_rates,
)
from xvfl_lab.experiments.run_store import RunStore, run_key
from xvfl_lab.task import Task, save_task

TINY = Budget(0, 0, 1, 1, (0.5,), 32, 1e-2, NetConfig(embedding_dim=4, hidden_dim=4))


def load(name: str, parties: int) -> Task:
    return small_task()


@pytest.mark.parametrize("figure", FIGURES)
@pytest.mark.parametrize("dataset", ["bank", "cifar10"])
def test_jobs_of_a_figure_are_distinct(figure: str, dataset: str) -> None:
    made = FIGURES[figure](dataset, budget_for(dataset, quick=False))
    assert made and len({run_key(job) for job in made}) == len(made)


def test_figures_share_their_runs() -> None:
    budget = budget_for("bank", quick=False)
    rates = {run_key(job) for job in FIGURES["missing-rates"]("bank", budget)}
    assert {run_key(job) for job in FIGURES["mode-gap"]("bank", budget)} <= rates
    some = {run_key(job) for job in FIGURES["ablations"]("bank", budget)}
    assert len(some & rates) == 2 * budget.seeds
    budget = budget_for("cifar10", quick=False)
    images = {run_key(job) for job in FIGURES["images"]("cifar10", budget)}
    some = {run_key(job) for job in FIGURES["ablations"]("cifar10", budget)}
    assert len(some & images) == 2 * budget.seeds


def test_a_key_changes_with_what_decides_the_result_alone() -> None:
    job = missing_rates("bank", QUICK["bank"])[0]
    assert run_key(job) == run_key(replace(job))
    for other in (
        replace(job, dataset="avazu"),
        replace(job, train_rows=1),
        replace(job, config=replace(job.config, rate=0.25)),
        replace(job, config=replace(job.config, loss=replace(job.config.loss, n_masks=3))),
    ):
        assert run_key(other) != run_key(job)


def test_results_are_found_again_and_nothing_runs_twice(tmp_path: Path) -> None:
    todo = make_jobs("small", TINY, rates=(0.5,), methods=("laser", "vanilla"))
    path, told = tmp_path / "runs" / "small.jsonl", []
    execute(todo[:1], RunStore(path), load, "cpu", in_this_process, lambda *said: told.append(said))
    again = RunStore(path)
    assert again.missing(todo) == todo[1:] and told == [(1, 1, "laser at 0.5")]
    execute(again.missing(todo), again, load, "cpu", in_this_process, lambda *_: None)
    found = RunStore(path).get(todo)
    assert [each.config for each in found] == [job.config for job in todo]
    assert 0 <= found[0].metrics["local"]["accuracy"] <= 1


def test_a_line_cut_short_is_run_again_and_harms_no_other(tmp_path: Path) -> None:
    todo = make_jobs("small", TINY, rates=(0.5, 0.9), methods=("laser",))
    path = tmp_path / "small.jsonl"
    execute(todo, RunStore(path), load, "cpu", in_this_process, lambda *_: None)
    whole = path.read_text()
    path.write_text(whole[:-30])
    store = RunStore(path)
    assert store.missing(todo) == todo[1:]
    execute(todo[1:], store, load, "cpu", in_this_process, lambda *_: None)
    assert not RunStore(path).missing(todo)
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
    assert ["key" in line for line in lines] == [False, True, True], "one configuration, two runs"


def test_lines_that_are_no_records_are_passed_over(tmp_path: Path) -> None:
    todo = make_jobs("small", TINY, rates=(0.5,), methods=("laser",))
    path = tmp_path / "small.jsonl"
    path.write_bytes(b'null\n[1]\n{"x": 1}\n\xff\xfe\n')
    execute(todo, RunStore(path), load, "cpu", in_this_process, lambda *_: None)
    assert not RunStore(path).missing(todo)


def test_results_of_other_data_are_made_again(tmp_path: Path) -> None:
    todo = make_jobs("small", TINY, rates=(0.5,), methods=("laser",))
    task = small_task()
    execute(
        todo,
        store := RunStore(tmp_path / "small.jsonl"),
        load,
        "cpu",
        in_this_process,
        lambda *_: None,
    )
    assert not store.missing(todo, task.digest())
    for other in (
        replace(task, y=task.y[::-1].copy()),
        replace(task, test=np.arange(len(task)) < 5),
        task.take(np.arange(len(task) - 1)),
    ):
        assert store.missing(todo, other.digest()) == todo


def test_whoever_stops_does_not_wait_for_the_runs_under_way(tmp_path: Path) -> None:
    save_task(small_task(), tmp_path / "small-2.npz")
    long = replace(TINY, epochs=100_000)
    todo = [
        *make_jobs("small", TINY, rates=(0.5,), methods=("laser",)),
        *make_jobs("small", long, rates=(0.5,), methods=("laser",)),
    ]
    others = set(active_children())
    made = in_processes(2)([[job] for job in todo], partial(load_from, tmp_path), "cpu")
    assert len(next(made)[1]) == 1
    assert set(active_children()) - others
    made.close()  # type: ignore[attr-defined]
    assert not set(active_children()) - others


def test_processes_give_what_one_gives(tmp_path: Path) -> None:
    save_task(small_task(), tmp_path / "small-2.npz")
    todo = make_jobs("small", TINY, rates=(0.5, 0.9), methods=("laser",))
    load_ = partial(load_from, tmp_path)
    one, two = RunStore(tmp_path / "one.jsonl"), RunStore(tmp_path / "two.jsonl")
    execute(todo, one, load_, "cpu", in_this_process, lambda *_: None)
    execute(todo, two, load_, "cpu", in_processes(2), lambda *_: None)
    assert [each.metrics for each in one.get(todo)] == [each.metrics for each in two.get(todo)]


def test_a_ray_cluster_gives_what_one_process_gives(tmp_path: Path) -> None:
    # A cluster starts at once or, on a machine that forbids it, not at all.
    ray = pytest.importorskip("ray", reason="the extra xvfl[ray] is not installed")
    done = subprocess.run(
        [sys.executable, "-c", CLUSTER, str(tmp_path)], capture_output=True, text=True, timeout=300
    )
    if done.returncode == NO_CLUSTER:
        pytest.skip(f"ray {ray.__version__} starts no cluster here: {done.stderr[-200:]}")
    assert done.returncode == 0, done.stderr
    todo = make_jobs("small", TINY, rates=(0.5, 0.9), methods=("laser",))
    one, there = RunStore(tmp_path / "one.jsonl"), RunStore(tmp_path / "ray.jsonl")
    execute(todo, one, load, "cpu", in_this_process, lambda *_: None)
    assert [each.metrics for each in one.get(todo)] == [each.metrics for each in there.get(todo)]
    assert {each["hardware"] for each in there.results.values()} == {hardware("cpu")}


def test_a_cluster_that_is_not_there_is_refused() -> None:
    pytest.importorskip("ray", reason="the extra xvfl[ray] is not installed")
    todo = make_jobs("small", TINY, rates=(0.5,), methods=("laser",))
    with pytest.raises(ConfigError, match="found none; start one with `ray start --head`"):
        next(on_ray("auto")([todo], load, "cpu"))


def test_where_runs_are_made_follows_what_is_asked_for() -> None:
    assert (
        choose_dispatch("cpu", 1) is in_this_process
        and choose_dispatch("cuda", 4) is in_this_process
    )
    assert choose_dispatch("cpu", 3) is not in_this_process
    assert choose_dispatch("cpu", 1, "auto") is not in_this_process


NO_CLUSTER = 77
CLUSTER = f"""
import sys, warnings
import ray
try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100_000_000)
except Exception as error:
    print(error, file=sys.stderr)
    sys.exit({NO_CLUSTER})
from pathlib import Path
from lab_tests.experiments.test_run_store import TINY, make_jobs, load
from xvfl_lab.experiments.dispatch import on_ray
from xvfl_lab.experiments.execute import execute
from xvfl_lab.experiments.run_store import RunStore
todo = make_jobs("small", TINY, rates=(0.5, 0.9), methods=("laser",))
store = RunStore(Path(sys.argv[1]) / "ray.jsonl")
execute(todo, store, load, "cpu", on_ray("auto"), lambda *_: None)
ray.shutdown()
"""


def test_subsets_keep_training_and_test_rows_apart() -> None:
    task = small_task()
    part = subset(task, 30, 10)
    assert part.test is not None
    assert (len(part), int(part.test.sum())) == (40, 10)
    assert len(subset(task, 0, 0)) == len(task)


def test_an_unknown_data_set_is_named_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="bank"):
        budget_for("banc", quick=True)
