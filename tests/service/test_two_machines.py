"""The two-party example on two machines, word for word from its README.

The link between them has a round-trip time of 50 ms and loses 1 % of the packets.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import pytest

from tests.processes import ROOT, SOURCES
from tests.two_machines import Machine, may_create_namespaces, two_machines
from xvfl.primitives.metrics import auroc
from xvfl.system.event_log import read_log
from xvfl_serve import Predictor

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not may_create_namespaces(), reason="needs the right to create network namespaces"
    ),
]
EXAMPLE = ROOT / "examples" / "two_parties"
DELAY_S, LOSS = 0.025, 0.01
"""In each direction."""


def blocks() -> list[str]:
    """Return the commands of the README's section on two machines."""
    text = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    return re.findall(r"```bash\n(.*?)```", text[text.index("## On two machines") :], re.DOTALL)


@dataclass
class Operator:
    """Types the README's commands on a machine, in a folder."""

    machine: Machine
    folder: Path
    environment: dict[str, str]
    shells: "list[subprocess.Popen[str]]" = field(default_factory=list)

    def begin(self, commands: str) -> "subprocess.Popen[str]":
        """Start a block of commands."""
        self.shells.append(
            subprocess.Popen(
                self.machine.command("bash", "-euo", "pipefail", "-c", commands),
                cwd=self.folder,
                env=self.environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return self.shells[-1]

    def type(self, commands: str) -> str:
        """Run a block of commands to its end; return its output."""
        return finish(self.begin(commands))

    def kill(self) -> None:
        """Kill what runs on the machine."""
        self.machine.kill_all()
        for shell in self.shells:
            if shell.returncode is None:
                shell.communicate()


def finish(shell: "subprocess.Popen[str]") -> str:
    out, err = shell.communicate(timeout=900)
    assert shell.returncode == 0, err[-3000:]
    return out


@contextmanager
def operators(folder: Path) -> Iterator[tuple[Operator, Operator]]:
    """Two machines with the example on the first one."""
    programs = folder / "bin"
    programs.mkdir()
    for name, command in {"python": "", "xvfl": "-m xvfl"}.items():
        script = programs / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {command} "$@"\n')
        script.chmod(0o755)
    shutil.copytree(EXAMPLE, folder / "first" / "two_parties")
    with two_machines(DELAY_S, LOSS) as (first, second, link):
        environment = {
            "PATH": f"{programs}{os.pathsep}/usr/sbin:/usr/bin:/sbin:/bin",
            "PYTHONPATH": SOURCES,
            "COORDINATOR": first.address,
            "OMP_NUM_THREADS": "1",
        }
        one = Operator(first, folder / "first" / "two_parties", environment)
        two = Operator(second, folder / "second", environment)
        try:
            yield one, two
        finally:
            one.kill()
            two.kill()
        assert link.lost > 0.003 * link.carried


def wait_for(folder: Path, event: str, count: int, shell: "subprocess.Popen[str]") -> None:
    """Wait for the n-th event of a kind in a log."""
    until = time.monotonic() + 600
    while sum(each["event"] == event for each in read_log(folder)) < count:
        assert shell.poll() is None, shell.communicate()[1][-3000:]
        assert time.monotonic() < until
        time.sleep(0.1)


def test_train_release_and_predict_on_two_machines(tmp_path: Path) -> None:
    prepare, train, take_part, release, receive, *together = blocks()
    with operators(tmp_path) as (first, second):
        first.type(prepare)
        shutil.move(first.folder / "second-machine", second.folder)
        assert not list(first.folder.rglob("laboratory.key"))

        main, _ = first.begin(train), second.begin(take_part)
        wait_for(second.folder / "laboratory-state", "encoder_training", 1, main)
        second.kill()
        wait_for(first.folder / "coordinator-state", "disconnected", 1, main)
        laboratory = second.begin(take_part)
        assert "collaborative" in finish(main)
        finish(laboratory)
        uploads = [
            each["party"]
            for each in read_log(first.folder / "coordinator-state")
            if each["event"] == "upload_received"
        ]
        assert sorted(uploads) == ["clinic", "laboratory"]

        main = first.begin(release)
        said = second.type(receive)
        assert "delivered" in finish(main)
        assert "tested: ONNX equals torch on 455 own rows" in said

        truth = pd.read_csv(first.folder / "labels.csv").set_index("patient")["diagnosis"]
        alone = pd.read_csv(second.folder / "local.csv").set_index("id")
        assert len(alone) == 455 and set(alone["mode"]) == {"local"}
        assert separates(alone, truth) > 0.9
        predictor = Predictor.load(second.folder / "laboratory.xvfl")
        assert list(predictor.outputs) == [("local", "laboratory")]
        check_collaborative(first, second, together, truth)


def check_collaborative(
    first: Operator, second: Operator, commands: list[str], truth: pd.Series
) -> None:
    """Predict with both machines, with the laboratory restarted, and without it."""
    serve_laboratory, serve, predict, assist = commands
    state, file = first.folder / "coordinator-state", first.folder / "collaborative.csv"
    second.begin(serve_laboratory)
    main = first.begin(serve)
    for restarts in range(2):
        wait_for(state, "party_available", 2 + restarts, main)
        first.type(predict)
        answers = pd.read_csv(file, keep_default_na=False).set_index("id")
        assert len(answers) == 569
        assert set(answers["mode"]) <= {"collaborative", "prior"}
        assert {"clinic", "laboratory", "clinic+laboratory"} <= set(answers["parties"])
        held = answers[answers["mode"] == "collaborative"]
        assert len(held) > 540 and separates(held, truth) > 0.9
        second.type(assist)
        check_assisted(pd.read_csv(second.folder / "assisted.csv").set_index("id"), truth)
        count = sum(each["event"] == "disconnected" for each in read_log(state))
        second.kill()
        wait_for(state, "disconnected", count + 1, main)
        if not restarts:
            second.begin(serve_laboratory)
    first.type(predict)
    answers = pd.read_csv(file, keep_default_na=False).set_index("id")
    assert set(answers["parties"]) <= {"clinic", ""}


def check_assisted(answers: pd.DataFrame, truth: pd.Series) -> None:
    """Check the laboratory's own rows: those with gaps that the clinic holds are assisted."""
    assert len(answers) == 455 and set(answers["mode"]) == {"assisted", "local"}
    assert (answers["mode"] == "assisted").sum() > 300
    assert separates(answers, truth) > 0.9


def separates(answers: pd.DataFrame, truth: pd.Series) -> float:
    """Return the AUROC of predictions."""
    proba = answers[["proba_benign", "proba_malignant"]].to_numpy(dtype=float)
    return auroc(proba, (truth.loc[answers.index] == "malignant").to_numpy(dtype=int))
