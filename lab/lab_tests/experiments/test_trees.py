"""Trees on the rows, masks and scores of the other methods' runs, and their figure."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lab_tests.experiments.test_stacked_runs import small_task
from xvfl.errors import ConfigError
from xvfl.model.trees import MEAN, TreeConfig, fit_trees, softmax
from xvfl.primitives.metrics import all_metrics
from xvfl_lab.experiments import runner, tree_runs, trees
from xvfl_lab.experiments.compare import values
from xvfl_lab.experiments.figures import QUICK, missing_rates
from xvfl_lab.experiments.plot_trees import plot
from xvfl_lab.experiments.run_store import RunStore, run_key
from xvfl_lab.experiments.runner import MIXED, WHOLE, run_many
from xvfl_lab.experiments.stacked_runs import RunConfig, RunRows, StackedRuns
from xvfl_lab.experiments.tree_runs import (
    EXAMPLE,
    TREES,
    TREES_POOLED,
    TreeJob,
    TreeRun,
    run_trees,
    tree_jobs_beside,
    tree_rows,
)
from xvfl_lab.task import Task

pytest.importorskip("lightgbm")
FEW = TreeConfig(max_trees=20, patience=5, masked_copies=1)


def load(name: str, parties: int) -> Task:
    return small_task()


def small_job(name: str, **changes: object) -> TreeJob:
    return TreeJob("small", 2, 0, 0, TreeRun(name, 0.5, 3, settings=FEW, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["uniform", "blocks"])
def test_rows_and_masks_are_those_of_the_methods(kind: str) -> None:
    task, job = small_task(), small_job(TREES, kind=kind)
    config = RunConfig("laser", 0.5, 3, kind=kind)  # type: ignore[arg-type]
    stack, rows = StackedRuns(task, [config]), tree_rows(task, RunRows(task, job.run))
    for part, places in (("train", rows.train), ("validation", rows.validation)):
        np.testing.assert_array_equal(stack.places(part)[0].numpy(), places)  # type: ignore[arg-type]
    assert len(rows.validation) == round(0.15 * (len(rows.train) + len(rows.validation)))
    np.testing.assert_array_equal(stack.all_rows.y.numpy(), rows.y)
    for worker, table in zip(stack.federation.workers, rows.tables, strict=True):
        encoded = worker.table.take(torch.arange(len(rows.y)))
        np.testing.assert_array_equal(encoded.observed.numpy(), table.observed)
        X = table.matrix(slice(None))
        dense = 3 if worker.name == "a" else 1
        numbers = encoded.values.numpy()[:, :dense]
        np.testing.assert_array_equal(np.nan_to_num(X[:, :dense]), numbers)
    a, b = (table.matrix(slice(None)) for table in rows.tables)
    one_hot = stack.federation.workers[0].table.take(torch.arange(len(rows.y))).values[:, 3:]
    known = ~np.isnan(a[:, 3])
    np.testing.assert_array_equal(one_hot.numpy()[known].argmax(1), a[known, 3])
    assert (one_hot.numpy()[~known] == 0).all() and known.any() and not known.all()
    codes = stack.federation.workers[1].table.take(torch.arange(len(rows.y))).codes[:, 0].numpy()
    np.testing.assert_array_equal(np.nan_to_num(b[:, 1]), codes)


def test_scores_count_the_pairs_and_rows_of_the_protocol() -> None:
    task, job = small_task(), small_job(TREES)
    result = run_trees(task, job)
    data = RunRows(task, job.run)
    fitted = fit_trees(tree_rows(task, data), [0, 1], FEW, 3)
    at = np.arange(len(data.base))[data.where("test")]
    proba, y = [], []
    for row in at:  # by hand: every pair of a test row and a party that is incomplete in it
        for party in (0, 1):
            if data.incomplete[row, party]:
                masks = fitted.choose(party)
                proba.append(softmax(fitted.logits(party, masks, np.array([row])))[0])
                y.append(task.y[data.base[row]])
    assert result.metrics["local"] == pytest.approx(all_metrics(np.array(proba), np.array(y)))
    together = softmax(fitted.logits(MEAN, fitted.choose(MEAN), at))
    expected = all_metrics(together, task.y[data.base[at].numpy()])
    assert result.metrics["collaborative"] == pytest.approx(expected)
    laser = replace(job.run.loss, method="laser")
    once = replace(job.run.train, epochs=1)
    (neural,) = run_many(task, [replace(job.run, name="laser", loss=laser, train=once)])
    assert result.majority == neural.majority
    own = {way for way in neural.metrics if not way.startswith("peers")}
    variants = {f"{m}{s}" for m in ("local", "collaborative") for s in tree_runs.SUFFIXES.values()}
    assert set(result.metrics) == own | variants


def test_pooled_trees_predict_together_only() -> None:
    result = run_trees(small_task(), small_job(TREES_POOLED))
    assert result.metrics.keys() >= {f"collaborative{rows}" for rows in ("", WHOLE, MIXED)}
    assert not any(way.startswith("local") for way in result.metrics)
    assert result.seconds > 0 and result.config.name == TREES_POOLED


def test_every_run_of_a_method_has_trees_beside_it() -> None:
    jobs = missing_rates("bank", QUICK["bank"])
    beside = tree_jobs_beside(jobs)
    scenarios = {(job.config.rate, job.config.seed) for job in jobs}
    assert len(beside) == 2 * len(scenarios) == len({run_key(job) for job in beside})
    for job in beside:
        same = next(
            each.config
            for each in jobs
            if (each.config.rate, each.config.seed) == (job.config.rate, job.config.seed)
        )
        assert job.run.scenario("train") == same.scenario("train")
        assert job.run.train.validation_fraction == same.train.validation_fraction


def test_results_are_stored_with_explicit_keys(tmp_path: Path) -> None:
    job = small_job(TREES)
    store = RunStore(tmp_path / "small.jsonl", EXAMPLE)
    assert store.missing([job]) == [job]
    result = run_trees(small_task(), job)
    store.add(job, result, "a machine", "data")
    again = RunStore(tmp_path / "small.jsonl", EXAMPLE)
    assert again.missing([job]) == [] and again.missing([job], "other data") == [job]
    (read,) = again.get([job])
    assert read.config == job.run
    assert values([read], (TREES, "local"), 0.5, "auroc")[3] == pytest.approx(
        result.metrics["local"]["auroc"], abs=1e-5
    )
    stored = [json.loads(line) for line in (tmp_path / "small.jsonl").read_text().splitlines()]
    assert stored[0]["config"]["config"]["settings"]["masked_copies"] == 1
    other = replace(job, config=replace(job.config, settings=TreeConfig()))
    assert run_key(other) != run_key(job)


def test_the_figure_reads_methods_and_computes_trees_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trees, "DATASETS", ("bank", "avazu"))
    shown: list[str] = []

    def figure() -> dict[str, object]:
        return trees.make(tmp_path / "trees", True, torch.device("cpu"), load, shown.append)

    record = figure()
    assert len(shown) == 2 * 2 * 3 * 2, "data sets, seeds, rates, trees and pooled trees"
    text = (tmp_path / "trees" / "trees.md").read_text()
    assert "## avazu" in text and "trees pooled" in text and "Paired" not in text
    assert figure() == record and len(shown) == 24
    plot(record["figures"], {})  # type: ignore[arg-type]
    store = RunStore(tmp_path / "runs" / "bank.jsonl")
    for job in trees.method_jobs("bank", quick=True):
        stack = StackedRuns(small_task(), [job.config])
        metrics = runner.test(stack)[0]
        store.add(job, trees.Result(job.config, metrics, 1.0, 0.5), "a machine", "data")
    changed = figure()
    assert changed != record and len(shown) == 24
    text = (tmp_path / "trees" / "trees.md").read_text()
    assert "**xvfl+**" in text and "xvfl+ minus" in text
    plot(changed["figures"], {})  # type: ignore[arg-type]


def test_the_figure_names_the_missing_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    with pytest.raises(ConfigError, match=r"xvfl-lab\[trees\]"):
        trees.make(tmp_path / "trees", True, torch.device("cpu"), load, print)
