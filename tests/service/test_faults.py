"""Processes killed, stalled and cut off: the run completes, and the log says what was lost."""

import random
import re
import signal
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.wire.proxy import proxy
from xvfl.service.demo import (
    PARTIES,
    TRAIN,
    Processes,
    folder_lines,
    in_one_process,
    mean_accuracy,
    write_files,
)
from xvfl.service.log import read_log

EPOCHS = 40


def free_port() -> int:
    with socket.create_server(("localhost", 0)) as found:
        port: int = found.getsockname()[1]
    return port


@pytest.mark.filterwarnings("ignore:5 of 1797 labelled ids", "ignore:party ")
def test_faults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Five kills of random parties, one of the coordinator, three cuts, one stall."""
    train, rng = replace(TRAIN, epochs=EPOCHS), random.Random(11)
    write_files(tmp_path)
    faults = ["kill"] * 5 + ["coordinator"] + ["cut"] * 3 + ["stall"]
    rng.shuffle(faults)
    at = sorted(rng.sample(range(3, EPOCHS - 4), len(faults)))
    table: list[tuple[Any, ...]] = []
    port = free_port()
    with (
        (tmp_path / "shown").open("w") as shown,
        proxy(port) as between,
        Processes(tmp_path, Console(file=shown, width=200), train, minimum=2) as processes,
    ):
        processes.start(port, between.port)
        for epoch, fault in zip(at, faults, strict=True):
            step = processes.event("epoch", lambda e, epoch=epoch: e["epoch"] >= epoch)["step"]
            time.sleep(rng.random() / 2)
            whom = rng.choice(PARTIES) if fault in ("kill", "stall") else "-"
            if fault == "kill":
                processes.kill(whom)
                processes.launch(whom)
            elif fault == "coordinator":
                processes.kill("coordinator")
                processes.launch("coordinator")
            elif fault == "cut":
                between.cut()
            else:
                processes.running[whom].send_signal(signal.SIGSTOP)
                time.sleep(4)
                processes.running[whom].send_signal(signal.SIGCONT)
            table.append((step, fault, whom))
        processes.wait()
    log = read_log(tmp_path / "coordinator")
    ours, theirs = folder_lines(tmp_path), in_one_process(tmp_path, train)
    together = [mean_accuracy(ours), mean_accuracy(theirs)]
    with capsys.disabled():
        show(table, log, together)
    assert any(event["event"] == "finished" for event in log)
    assert abs(together[0] - together[1]) <= 0.01
    assert_losses(log)
    for name in PARTIES:
        assert not [e for e in read_log(tmp_path / name) if "made already" in e.get("why", "")]


def assert_losses(log: list[dict[str, Any]]) -> None:
    """See that what each party lost reaches back no further than its last checkpoint."""
    saved = [0]
    for event in log:
        if event["event"] == "checkpoint":
            saved.append(event["step"])
        if event["event"] == "joined" and event["lost_updates"]:
            assert event["from_checkpoint"] in saved[-3:]
            first, last = event["lost_steps"]
            assert event["from_checkpoint"] <= first <= last <= event["step"]


def show(table: list[tuple[Any, ...]], log: list[dict[str, Any]], together: list[float]) -> None:
    """Print what was done and what it cost."""
    print("\n step  fault        whom")
    for step, fault, whom in table:
        print(f"{step:5}  {fault:12} {whom}")
    for event in log:
        if event["event"] in ("left", "resumed") or event.get("lost_updates"):
            rest = {k: v for k, v in event.items() if k not in ("time", "event", "why")}
            print(f"  {event['event']:8} {re.sub(r'[{}]', '', str(rest))}")
    print(f"accuracy with faults {together[0]:.3f}, without {together[1]:.3f}")
