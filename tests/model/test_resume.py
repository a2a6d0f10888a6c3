"""A run cut short anywhere and resumed ends in the very same weights."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.small_tables import (
    CONFIG,
    SOURCE,
    assert_same_run,
    checkpoint_bytes,
    has_no_temporary_files,
    interrupt_at,
    rejected_with,
    run_xvfl,
    train,
    write_run_inputs,
)
from xvfl.model.fitting import ProgressUpdate
from xvfl.model.run_dir import CHECKPOINT, MODEL, RunDir

STEPS = 6
"""Three epochs of two steps, with the small configuration."""


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "page"])
def test_stopped_at_three_random_steps(optimizer: str, tmp_path: Path) -> None:
    config = write_run_inputs(tmp_path, CONFIG + f'optimizer = "{optimizer}"\n')
    whole = train(config, tmp_path / "whole")
    assert whole.records[-1]["step"] == STEPS
    for step in random.Random(optimizer).sample(range(1, STEPS), 3):
        out = tmp_path / f"cut{step}"
        assert train(config, out, show=interrupt_at(step)).interrupted
        assert not (out / "manifest.json").exists() and (out / CHECKPOINT).exists()
        assert not train(config, out, resume=True).interrupted
        assert_same_run(out, tmp_path / "whole")


def test_stopped_after_every_step(tmp_path: Path) -> None:
    config = write_run_inputs(tmp_path)
    train(config, tmp_path / "whole")
    for step in range(1, STEPS + 1):
        train(config, tmp_path / "cut", resume=True, show=interrupt_at(step))
    train(config, tmp_path / "cut", resume=True)
    assert_same_run(tmp_path / "cut", tmp_path / "whole")


def test_seeds(tmp_path: Path) -> None:
    config = write_run_inputs(tmp_path)
    train(config, tmp_path / "a")
    train(config, tmp_path / "b")
    assert_same_run(tmp_path / "a", tmp_path / "b")
    config.write_text(CONFIG + "random_state = 1\n")
    train(config, tmp_path / "c")
    first, other = (RunDir(tmp_path / name).load_tensors(MODEL)[0] for name in "ac")
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_early_stopping_survives_a_resume(tmp_path: Path) -> None:
    config = write_run_inputs(tmp_path, CONFIG.replace("epochs = 3", "epochs = 30\npatience = 1"))
    config.write_text(config.read_text() + 'learning_rate = 0.1\nschedule = "constant"\n')
    whole = train(config, tmp_path / "whole")
    assert whole.records[-1]["epoch"] < 30
    train(config, tmp_path / "cut", show=interrupt_at(whole.records[-1]["step"]))
    train(config, tmp_path / "cut", resume=True)
    assert_same_run(tmp_path / "cut", tmp_path / "whole")


LONG = CONFIG.replace("epochs = 3", "epochs = 60\npatience = 0")
EAGER = (
    "import xvfl.model.fitting as t; t.CHECKPOINT_SECONDS = 0; "
    "from xvfl.cli.main import main; main()"
)


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration that trains for a second or more, beside its uninterrupted run."""
    folder = tmp_path_factory.mktemp("long")
    train(write_run_inputs(folder, LONG), folder / "whole")
    return folder


def test_ctrl_c_in_the_shell(long_run: Path) -> None:
    out = long_run / "stopped"
    process = start(long_run, out, "-m", "xvfl")
    wait_for(out, epochs=2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == f"stopped; continue with: xvfl train run.toml --out {out} --resume\n"
    assert not (out / MODEL).exists() and has_no_temporary_files(out)
    said = run_xvfl("train", long_run / "run.toml", "--out", out, "--resume")
    assert said.code == 0 and "trained 60 epochs" in said.out
    assert_same_run(out, long_run / "whole")
    again = run_xvfl("train", long_run / "run.toml", "--out", out, "--resume")
    assert again.code == 0 and "finished already" in again.out


def test_power_cut(long_run: Path) -> None:
    out = long_run / "killed"
    process = start(long_run, out, "-c", EAGER)
    wait_for(out, epochs=5)
    process.kill()
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert "--resume" in rejected_with("evaluate", out)
    assert run_xvfl("train", long_run / "run.toml", "--out", out, "--resume").code == 0
    assert_same_run(out, long_run / "whole")


def test_power_cut_before_the_first_checkpoint(tmp_path: Path) -> None:
    config = write_run_inputs(tmp_path)
    train(config, tmp_path / "whole")
    out = tmp_path / "cut"
    train(config, out, show=interrupt_at(5))
    (out / CHECKPOINT).unlink()
    with (out / "records.jsonl").open("a") as file:
        file.write('{"kind": "epo')
    assert "--resume" in rejected_with("train", config, "--out", out)
    train(config, out, resume=True)
    assert_same_run(out, tmp_path / "whole")


def test_power_cut_between_the_record_of_an_epoch_and_the_next_checkpoint(tmp_path: Path) -> None:
    config = write_run_inputs(tmp_path)
    train(config, tmp_path / "whole")
    out = tmp_path / "cut"
    train(config, out, show=interrupt_at(4))
    last_of_its_epoch = checkpoint_bytes(out)
    train(config, out, resume=True, show=interrupt_at(5))
    assert len(RunDir(out).records()) == 2
    (out / CHECKPOINT).write_bytes(last_of_its_epoch)
    train(config, out, resume=True)
    assert_same_run(out, tmp_path / "whole")


def start(folder: Path, out: Path, *python: str) -> "subprocess.Popen[str]":
    """Start a training in a process of its own."""
    return subprocess.Popen(
        [sys.executable, *python, "train", "run.toml", "--out", str(out)],
        cwd=folder,
        env={"PYTHONPATH": str(SOURCE), "PATH": "/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(out: Path, epochs: int) -> None:
    """Wait until a run has done some epochs."""
    until = time.monotonic() + 120
    while len(RunDir(out).records()) < epochs:
        assert time.monotonic() < until, "the training did not start"
        time.sleep(0.005)


SEARCH = CONFIG + "\n[loss]\nlambda1 = [0.0, 0.5]\nlambda2 = [0.1, 5.0]\n"


def test_weights_of_the_loss_are_chosen_by_validation(tmp_path: Path) -> None:
    config = write_run_inputs(tmp_path, SEARCH)
    train(config, tmp_path / "whole")
    tried = [r for r in RunDir(tmp_path / "whole").records() if r["kind"] == "search"]
    pairs = [(each["lambda1"], each["lambda2"]) for each in tried]
    assert pairs == [(0.0, 0.1), (0.0, 5.0), (0.5, 0.1), (0.5, 5.0)]
    best = max(tried, key=lambda each: each["score"])
    loss = json.loads((tmp_path / "whole" / "manifest.json").read_text())["loss"]
    assert (loss["lambda1"], loss["lambda2"]) == (best["lambda1"], best["lambda2"])

    done: list[str] = []

    def stop_in_third(update: ProgressUpdate) -> None:
        if "(3/4)" in update.label and update.record.progress.step == 4:
            signal.raise_signal(signal.SIGINT)

    assert train(config, tmp_path / "cut", show=stop_in_third).interrupted
    assert not (tmp_path / "cut" / CHECKPOINT).exists()
    train(config, tmp_path / "cut", resume=True, show=lambda update: done.append(update.label))
    assert {label[-5:] for label in done} == {"(3/4)", "(4/4)", ""}
    assert_same_run(tmp_path / "cut", tmp_path / "whole")


def test_a_search_does_not_reuse_another_configurations_scores(tmp_path: Path) -> None:
    config = write_run_inputs(tmp_path, SEARCH)

    def stop_in_second(update: ProgressUpdate) -> None:
        if "(2/4)" in update.label:
            signal.raise_signal(signal.SIGINT)

    train(config, tmp_path / "run", show=stop_in_second)
    config.write_text(SEARCH.replace("epochs = 3", "epochs = 2"))
    labels: list[str] = []
    train(config, tmp_path / "run", resume=True, show=lambda update: labels.append(update.label))
    assert any("(1/4)" in label for label in labels)
