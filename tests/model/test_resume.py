"""A run cut short anywhere and resumed ends in the very same weights."""

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.command_line import rejected_with, run_xvfl
from tests.small_tables import (
    CONFIG,
    SOURCE,
    assert_same_run,
    checkpoint_bytes,
    has_no_temporary_files,
    interrupt_at,
    train,
    write_run_inputs,
)
from xvfl.model.run_dir import CHECKPOINT, MODEL, RunDir

STEPS = 6
"""Three epochs of two steps, with the small configuration."""


@pytest.mark.slow
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


@pytest.mark.slow
def test_seeds(tmp_path: Path) -> None:
    config = write_run_inputs(tmp_path)
    train(config, tmp_path / "a")
    train(config, tmp_path / "b")
    assert_same_run(tmp_path / "a", tmp_path / "b")
    config.write_text(CONFIG + "random_state = 1\n")
    train(config, tmp_path / "c")
    first, other = (RunDir(tmp_path / name).load_tensors(MODEL)[0] for name in "ac")
    assert not all(torch.equal(first[name], other[name]) for name in first)


@pytest.mark.slow
def test_early_stopping_survives_a_resume(tmp_path: Path) -> None:
    config = write_run_inputs(tmp_path, CONFIG.replace("epochs = 3", "epochs = 30\npatience = 1"))
    config.write_text(config.read_text() + 'learning_rate = 0.1\nschedule = "constant"\n')
    whole = train(config, tmp_path / "whole")
    assert whole.records[-1]["epoch"] < 30
    train(config, tmp_path / "cut", show=interrupt_at(whole.records[-1]["step"]))
    train(config, tmp_path / "cut", resume=True)
    assert_same_run(tmp_path / "cut", tmp_path / "whole")


LONG = CONFIG.replace("epochs = 3", "epochs = 10\npatience = 0")
SIGNAL_ITSELF = """
import os, runpy, signal
import xvfl.model.run_recorder
from xvfl.model.run_dir import RunDir

append = RunDir.append_record

def append_and_signal(self, record):
    append(self, record)
    if record.get("epoch") == EPOCH:
        os.kill(os.getpid(), signal.SIGNAL)

RunDir.append_record = append_and_signal
xvfl.model.run_recorder.CHECKPOINT_SECONDS = SECONDS
runpy.run_module("xvfl", run_name="__main__", alter_sys=True)
"""
"""The command line; once the record of an epoch is written, the process gets a signal."""


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a configuration of ten epochs, and its uninterrupted run."""
    folder = tmp_path_factory.mktemp("long")
    train(write_run_inputs(folder, LONG), folder / "whole")
    return folder


@pytest.mark.slow
def test_ctrl_c_in_the_shell(long_run: Path) -> None:
    out = long_run / "stopped"
    done = train_and_signal(long_run, out, signal.SIGINT, epoch=2, checkpoint_seconds=15)
    assert done.returncode == 130
    # On a busy machine, lines on the progress precede it.
    last = done.stderr.splitlines()[-1]
    assert last == f"stopped; continue with: xvfl train run.toml --out {out} --resume"
    assert not (out / MODEL).exists() and has_no_temporary_files(out)
    said = run_xvfl("train", long_run / "run.toml", "--out", out, "--resume")
    assert said.code == 0 and "trained 10 epochs" in said.out
    assert_same_run(out, long_run / "whole")
    again = run_xvfl("train", long_run / "run.toml", "--out", out, "--resume")
    assert again.code == 0 and "already finished" in again.out


@pytest.mark.slow
def test_power_cut(long_run: Path) -> None:
    out = long_run / "killed"
    done = train_and_signal(long_run, out, signal.SIGKILL, epoch=5, checkpoint_seconds=0)
    assert done.returncode == -signal.SIGKILL
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


def train_and_signal(
    folder: Path, out: Path, number: signal.Signals, epoch: int, checkpoint_seconds: float
) -> "subprocess.CompletedProcess[str]":
    """Train in a process of its own, which gets a signal after an epoch."""
    code = SIGNAL_ITSELF.replace("EPOCH", str(epoch)).replace("SIGNAL", number.name)
    code = code.replace("SECONDS = SECONDS", f"SECONDS = {checkpoint_seconds}")
    return subprocess.run(
        [sys.executable, "-c", code, "train", "run.toml", "--out", str(out)],
        cwd=folder,
        env={"PYTHONPATH": str(SOURCE), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
