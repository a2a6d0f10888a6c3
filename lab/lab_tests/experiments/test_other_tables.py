"""Tables from CSV files beside trees: preparing, computing, resuming, and who is ahead."""

import itertools
import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lab_tests.experiments.test_bare_machine import BLOCKED
from lab_tests.experiments.test_stacked_runs import small_task
from tests.processes import run_python
from xvfl.config import TrainConfig
from xvfl.errors import InputError
from xvfl_lab.datasets.csv_tables import read_csv_table
from xvfl_lab.experiments import other_tables
from xvfl_lab.experiments.other_tables import (
    Record,
    Work,
    compute_all,
    default_run,
    missing_work,
    prepare,
    read_runs,
    run_of,
)
from xvfl_lab.experiments.other_tables_summary import summary
from xvfl_lab.experiments.runner import test as score_runs
from xvfl_lab.experiments.stacked_runs import CPU, StackedRuns, isolated
from xvfl_lab.experiments.tree_runs import TREES, TREES_POOLED, TreeConfig, TreeJob, TreeRun
from xvfl_lab.experiments.tree_runs import run_trees as run_trees_alone
from xvfl_lab.files import append_lines
from xvfl_lab.task import Task, load_task, save_task

BARE = f"""
import sys
for name in {BLOCKED!r}:
    sys.modules[name] = None
import json
from functools import partial
from pathlib import Path
from xvfl_lab.experiments import other_tables
other_tables.TrainConfig = partial(other_tables.TrainConfig, epochs=1)
for name in sys.argv[2:]:
    work = other_tables.Work(Path(sys.argv[1]), "small", name, ((0.5, 3), (0.9, 3)))
    for record in other_tables.compute(work):
        print(json.dumps(record))
"""


def two_classes() -> Task:
    task = small_task(320)
    return replace(task, y=np.minimum(task.y, 1))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    columns = {name: rng.random(100) for name in ("a", "b__1", "c", "out")}
    frame = pd.DataFrame({**columns, "text": ["x", "?"] * 50, "label": ["yes", "no"] * 50})
    frame.to_csv(tmp_path / "some.csv")
    return tmp_path / "some.csv"


def test_a_csv_file_is_split_over_two_parties(table: Path) -> None:
    read = read_csv_table(f"{table}:label=yes:out")
    assert read.name == "some" and len(read.frame) == 100 and (~read.test).sum() == 70
    assert read.parties == {2: {"first": ["a", "c"], "second": ["b_1", "text"]}}
    assert read.options.categorical == ("text",) and read.frame["text"].isna().sum() == 50
    source = pd.read_csv(table).set_index("a")["label"]
    np.testing.assert_array_equal(source[read.frame["a"]] == "yes", read.y == 1)
    few = read_csv_table(f"{table}:c>median:", 20, 5, "few")
    assert few.name == "few" and (~few.test).sum() == 20 and few.test.sum() == 5
    pd.testing.assert_series_equal(few.frame["a"], read.frame["a"][:25])
    with pytest.raises(InputError, match="has no column 'z'"):
        read_csv_table(f"{table}:z=1:")
    with pytest.raises(InputError, match="FILE:LABEL:COLUMNS"):
        read_csv_table("some.csv")


def test_tables_are_prepared_also_with_all_rows(
    table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare([f"{table}:label=yes:"], table.parent, ["some"])
    assert "some-all-2.npz: 100 rows, 5 columns" in capsys.readouterr().out
    task = load_task(table.parent / "some-all-2.npz")
    assert task.name == "some-all" and any(each.bins for each in task.layouts.values())
    works = missing_work(table.parent, [], ["xvfl+"], "cuda", seeds=2)
    assert {(work.table, len(work.scenarios)) for work in works} == {("some", 6), ("some-all", 6)}


def test_runs_have_the_defaults_of_one_process() -> None:
    task = two_classes()
    config = default_run(task)
    assert config.net.members == 4 and config.loss.method == "xvfl+" and config.loss.joint_masks
    options = StackedRuns(task, [replace(config, seed=1)], as_stored=False).options
    assert (options.net, options.loss, options.train) == (config.net, config.loss, config.train)
    assert options.privacy.sends_gradients


def test_runs_need_torch_numpy_and_lightgbm_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("lightgbm")
    task = two_classes()
    save_task(task, tmp_path / "small-2.npz")
    done = run_python("-c", BARE, str(tmp_path), "xvfl+", TREES, TREES_POOLED)
    assert done.returncode == 0, done.stderr
    records: list[Record] = [json.loads(line) for line in done.stdout.splitlines()]
    names = ["xvfl+", TREES, TREES_POOLED]
    assert [run_of(each) for each in records] == [
        ("small", name, rate, 3) for name in names for rate in (0.5, 0.9)
    ]
    assert {each["data"] for each in records} == {task.digest()}
    assert all("collaborative validation" in each["auroc"] for each in records)
    monkeypatch.setattr(other_tables, "TrainConfig", partial(TrainConfig, epochs=1, random_state=3))
    config = replace(default_run(task), rate=0.5, seed=3)
    with isolated(task, CPU):
        stack = StackedRuns(task, [config], as_stored=False)
        stack.train()
        (alone,) = score_runs(stack)
    auroc = alone["local"]["auroc"]
    assert records[0]["auroc"]["local"] == pytest.approx(auroc, abs=1e-3)
    run = TreeRun(TREES_POOLED, 0.9, 3, settings=TreeConfig())
    trees = run_trees_alone(task, TreeJob("small", 2, 0, 0, run))
    expected = trees.metrics["collaborative"]["auroc"]
    assert records[5]["auroc"]["collaborative"] == pytest.approx(expected, abs=1e-6)
    out = tmp_path / "runs.jsonl"
    append_lines(out, records)
    finished = read_runs(out)
    left = missing_work(tmp_path, finished, names, "cpu", rates=(0.5, 0.9), seeds=4)
    assert len(left) == 2 * 3 * 3 and all(work.scenarios[0][1] < 3 for work in left)
    other = [{**each, "data": "other"} for each in finished]
    assert len(missing_work(tmp_path, other, names, "cpu", rates=(0.5, 0.9), seeds=4)) == 24


def test_processes_stop_at_the_limit_and_name_what_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work(tmp_path, "missing", "xvfl+", ((0.5, 0),))
    out = tmp_path / "runs.jsonl"
    assert not compute_all([work], out, 1, 0.0)
    assert "stopped after 0 s, 1 left" in capsys.readouterr().out
    failed = InputError("no such file")
    monkeypatch.setattr(other_tables, "_in_processes", lambda *_: iter([(work, failed)]))
    assert not compute_all([work], out, 1)
    assert "missing xvfl+: R_miss 0.5, seed 0: failed: InputError" in capsys.readouterr().out
    done = {"table": "missing", "auroc": {"collaborative": 0.75}}
    monkeypatch.setattr(other_tables, "_in_processes", lambda *_: iter([(work, [done])]))
    assert compute_all([work], out, 1)
    assert "0 left" in capsys.readouterr().out and json.loads(out.read_text()) == done


def record(name: str, table: str, rate: float, seed: int, **auroc: float) -> Record:
    return {"table": table, "name": name, "rate": rate, "seed": seed, "auroc": auroc}


def test_the_summary_compares_with_the_better_tree() -> None:
    records = []
    for table, gain in (("one", 0.02), ("two", -0.04), ("two-all", 0.5)):
        for rate, seed in itertools.product((0.0, 0.5), range(3)):
            ours, run = 0.5 + gain + 0.001 * seed, (table, rate, seed)
            records += [
                record("xvfl+", *run, local=ours, collaborative=ours),
                record(TREES, *run, local=0.5, collaborative=0.4),
                record(TREES_POOLED, *run, collaborative=0.5),
            ]
    lines = summary(records)
    (row,) = [line for line in lines if line.startswith("| one") and "pooled" in line]
    assert row.count("52.10 / 50.00 (pooled): +2.10 ± 0.25 **ahead**") == 2
    (mean,) = [line for line in lines if line.startswith("collaborative, mean")]
    assert "-0.90 ± 38.12 (p = 0.814), better on 1 of 2; significantly behind: two" in mean
