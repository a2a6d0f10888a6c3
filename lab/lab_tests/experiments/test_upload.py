"""Runs by one upload: what encoders learn from, and the figure from stored runs."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch

from lab_tests.experiments.test_stacked_runs import configs, small_task
from tests.processes import run_python
from xvfl.config import EncoderConfig, PrivacyConfig
from xvfl.federation.upload.stored_party import StoredParty
from xvfl_lab.experiments import runner, upload, upload_runs
from xvfl_lab.experiments.plot_upload import plot
from xvfl_lab.experiments.stacked_runs import RunConfig, StackedRuns
from xvfl_lab.experiments.upload_recovery import attack_run, mean_recovery, recovery_record
from xvfl_lab.experiments.upload_runs import ARMS, MODES, OLD, SETS, Record, arms_of, task_of
from xvfl_lab.task import Task, save_task

SMALL = EncoderConfig(epochs=2, batch_size=16, embedding_dim=8, hidden_dim=8, masked_copies=2)
NO_GRADIENTS = PrivacyConfig("no_gradients")


@pytest.fixture(autouse=True)
def _own_random_state() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        yield


def uploaded(task: Task, runs: list[RunConfig]) -> StackedRuns:
    return StackedRuns(task, runs, privacy=NO_GRADIENTS, encoder=SMALL)


def views(stack: StackedRuns) -> list[torch.Tensor]:
    return [each.views for each in cast(Sequence[StoredParty], stack.federation.workers)]


def test_stacked_uploads_are_those_of_the_runs_alone() -> None:
    task, todo = small_task(), configs("xvfl+", weights="last")
    many = uploaded(task, todo)
    for run, config in enumerate(todo):
        for together, single in zip(views(many), views(uploaded(task, [config])), strict=True):
            # The masks of copies depend on the place of a row in the stack.
            plain = together.chunk(3)[run][:, 0]
            torch.testing.assert_close(plain, single[:, 0], rtol=0, atol=2e-3)
    many.train()
    for scores in runner.test(many):
        assert scores.keys() >= set(MODES)


def test_encoders_learn_from_training_and_unlabeled_rows_alone() -> None:
    task, (config, *_) = small_task(), configs("xvfl+")
    drawn = uploaded(task, [config]).run_rows[0]

    def changed(part: str) -> Task:
        rows = drawn.base[drawn.where(part)].numpy()  # type: ignore[arg-type]
        values = {name: each.copy() for name, each in task.values.items()}
        for each in values.values():
            each[rows] = 1 - each[rows]
        return replace(task, values=values)

    learned = torch.arange(len(drawn.base))[drawn.where("train")]
    before = [each[learned] for each in views(uploaded(task, [config]))]
    for part in ("validation", "test"):
        after = [each[learned] for each in views(uploaded(changed(part), [config]))]
        assert all(map(torch.equal, before, after)), part


def test_unlabeled_rows_leave_the_labeled_ones_as_they_are() -> None:
    task, data = small_task(), upload_runs.DataSet("small", labels=60, test_rows=20)
    some, every = (task_of(lambda *_: task, data, each) for each in (False, True))
    assert len(some) == 80 and len(every) == 140 and (every.y < 0).sum() == 60
    (config, *_) = configs("xvfl+")
    few, more = uploaded(some, [config]), uploaded(every, [config])
    assert len(more.places("unlabeled")[0]) == 60 and not len(few.places("unlabeled")[0])
    for part in ("train", "validation", "test"):
        a, b = few.rows(part), more.rows(part)  # type: ignore[arg-type]
        assert torch.equal(a.y, b.y) and torch.equal(a.full, b.full)
    assert not all(
        torch.equal(a[: len(few.places("train")[0])], b[: len(few.places("train")[0])])
        for a, b in zip(views(few), views(more), strict=True)
    )


@pytest.mark.slow
def test_uploads_are_attacked() -> None:
    config = replace(configs("xvfl+")[0], rate=0.0)
    stack = uploaded(small_task(400), [config])
    recovery = attack_run(stack, 0)
    assert recovery.keys() == {"a", "b"}
    found = mean_recovery([recovery])
    (pair,) = found["decoder, 50 rows", "numbers"]
    assert pair[0] > pair[1] + 0.2


def stored_runs() -> list[Record]:
    rng = np.random.default_rng(0)
    runs = []
    for name in ("bank", "cifar10-16000"):
        for arm in (*arms_of(name), OLD):
            for rate in SETS[name].rates:
                for seed in range(SETS[name].seeds):
                    value = 0.7 + 0.01 * (arm == "upload") + 0.001 * rng.random()
                    metrics = {m: dict.fromkeys(("auroc", "accuracy"), value) for m in MODES}
                    where = {"set": name, "arm": arm, "rate": rate, "seed": seed, "data": ""}
                    about = {"seconds": 3.0, "wall": 4.0, "hardware": "a GPU", "metrics": metrics}
                    runs.append({**where, **about})
    return runs


def test_the_figure_is_written_from_stored_runs(tmp_path: Path) -> None:
    def attacks(value: float) -> list[dict[str, object]]:
        about = {"attack": "ICA", "metric": "numbers", "control": 0.1}
        return [{**about, "value": value}]

    recovery = [
        recovery_record("bank", arm, seed, {"a": attacks(value + 0.001 * seed)})
        for arm, value in (("upload", 0.5), (OLD, 0.8))
        for seed in range(5)
    ]
    lines = [json.dumps(each) + "\n" for each in (*stored_runs(), *recovery)]
    (tmp_path / upload.RUNS).write_text("".join(lines))
    record = upload.write(tmp_path)
    assert record["hardware"] == "a GPU"
    gap = record["figures"]["runs"]["bank"]["upload"]["modes"]["local"]["minus"][OLD]
    assert gap["mean"] == pytest.approx(1.0, abs=0.1) and gap["seeds"] == 5
    text = (tmp_path / "upload.md").read_text()
    assert "## bank" in text and "## cifar10-16000" in text and "GPU seconds" in text
    assert "| ICA | 0.70 | 0.40 |" in text and "less: `ICA`" in text
    assert plot(record["figures"], {}).axes


@pytest.mark.slow
def test_the_runs_need_torch_and_numpy_alone(tmp_path: Path) -> None:
    """The command of a GPU machine, with the product's other packages blocked."""
    save_task(replace(small_task(), name="digits"), tmp_path / "digits-2.npz")
    blocked = ("pandas", "sklearn", "matplotlib", "safetensors", "grpc", "cryptography", "scipy")
    command = f"""
import runpy, sys
from dataclasses import replace
for name in {blocked!r}:
    sys.modules[name] = None
from functools import partial
from xvfl.config import EncoderConfig, TrainConfig
from xvfl_lab.experiments import upload_runs
upload_runs.TrainConfig = partial(TrainConfig, epochs=1)
arm = upload_runs.ARMS["upload"]
small = EncoderConfig(epochs=1, embedding_dim=8, hidden_dim=8)
upload_runs.ARMS["upload"] = replace(arm, encoder=small)
upload_runs.main()
"""
    out = tmp_path / "runs.jsonl"
    options = ["--tasks", str(tmp_path), "--out", str(out), "--device", "cpu", "--seeds", "0"]
    done = run_python("-c", command, "digits", "upload", *options)
    assert done.returncode == 0, done.stderr
    assert len(upload_runs.read_runs(out)) == 3 and "attacked" in done.stdout


def test_every_arm_is_known() -> None:
    for name, data in SETS.items():
        for arm in arms_of(name):
            assert arm in ARMS and upload_runs.choose_arm(arm, data)
