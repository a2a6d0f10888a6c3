"""Processes killed, stalled and cut off: the run completes, and the log says what was lost."""

import random
import re
import signal
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.processes import free_port
from tests.wire.proxy import proxy
from xvfl.cli.demo_federated import (
    PARTIES,
    TRAIN,
    Processes,
    accuracy_differences,
    federated_lines,
    one_process_lines,
    write_files,
)
from xvfl.service.log import read_log

pytestmark = pytest.mark.slow
EPOCHS = TRAIN.epochs
SIMILAR = 0.1
"""Bound of the difference in accuracy to a run without faults. It detects a broken model; when the
faults strike depends on the machine, so that a smaller one would measure chance."""


@pytest.mark.filterwarnings("ignore:5 of 1797 labeled ids", "ignore:party ")
def test_faults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Five kills of random parties, one of the coordinator, three cuts, one stall."""
    rng = random.Random(11)
    write_files(tmp_path)
    faults = ["kill"] * 5 + ["coordinator"] + ["cut"] * 3 + ["stall"]
    rng.shuffle(faults)
    at = sorted(rng.sample(range(3, EPOCHS - 4), len(faults)))
    table: list[tuple[Any, ...]] = []
    port = free_port()
    with (
        (tmp_path / "shown").open("w") as shown,
        proxy(port) as between,
        Processes(tmp_path, Console(file=shown, width=200), TRAIN, min_parties=2) as processes,
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
                between.drop_connections()
            else:
                processes.running[whom].send_signal(signal.SIGSTOP)
                time.sleep(4)
                processes.running[whom].send_signal(signal.SIGCONT)
            table.append((step, fault, whom))
        processes.wait()
    log = read_log(tmp_path / "coordinator")
    ours, theirs = federated_lines(tmp_path), one_process_lines(tmp_path, TRAIN)
    gaps = accuracy_differences(ours, theirs)
    with capsys.disabled():
        show(table, log, gaps)
    assert any(event["event"] == "finished" for event in log)
    assert max(map(abs, gaps.values())) <= SIMILAR
    assert_losses(log)
    for name in PARTIES:
        assert not [e for e in read_log(tmp_path / name) if "made already" in e.get("reason", "")]


class PausingProcesses(Processes):
    """Once the file `killed` exists, an epoch with one party pauses until `returned` exists.

    A restarted party connects meanwhile, so the epochs without it do not depend on the machine.
    """

    program = (
        "-c",
        """
import pathlib, runpy, time
from xvfl.service.log import EventLog

write = EventLog.write

def write_and_pause(self, event):
    write(self, event)
    alone = event["event"] == "epoch" and event["parties"] == 1
    while alone and pathlib.Path("killed").exists() and not pathlib.Path("returned").exists():
        time.sleep(0.01)

EventLog.write = write_and_pause
runpy.run_module("xvfl", run_name="__main__", alter_sys=True)
""",
    )


@pytest.mark.filterwarnings("ignore:5 of 1797 labeled ids", "ignore:party ")
def test_training_goes_on_without_a_killed_party(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kill a random party at a random step, with one party being enough; let it come back."""
    rng = random.Random(23)
    write_files(tmp_path)
    whom, at = rng.choice(PARTIES), rng.randrange(3, EPOCHS // 3)
    with (
        (tmp_path / "shown").open("w") as shown,
        PausingProcesses(tmp_path, Console(file=shown, width=200), TRAIN) as processes,
    ):
        processes.start()
        step = processes.event("epoch", lambda e: e["epoch"] >= at)["step"]
        time.sleep(rng.random() / 2)
        processes.kill(whom)
        killed = datetime.now(UTC).isoformat(timespec="milliseconds")
        (tmp_path / "killed").touch()
        alone = processes.event("epoch", lambda e: e["parties"] == 1 and e["time"] > killed)
        processes.launch(whom)
        processes.event("connected", lambda e: e["party"] == whom and e["time"] > alone["time"])
        (tmp_path / "returned").touch()
        processes.wait()
    log = read_log(tmp_path / "coordinator")
    with capsys.disabled():
        show([(step, "kill", whom)], log, {})
    epochs = [event for event in log if event["event"] == "epoch"]
    assert [event["epoch"] for event in epochs] == list(range(1, EPOCHS + 1))
    assert {event["step"] - (event["epoch"] * epochs[0]["step"]) for event in epochs} == {0}
    assert epochs[-1]["score"] > epochs[0]["score"]
    joined = [e for e in log if e["event"] == "party_joined" and e["party"] == whom]
    back = next(e for e in joined if e["time"] > alone["time"])
    assert any(e["parties"] == 2 for e in epochs if e["step"] > back["step"])
    absences = [e for e in log if e["event"] == "party_left" and e["party"] == whom]
    left = [e for e in absences if e["time"] < alone["time"]][-1]
    first, last = back["lost_updates"]
    # Its absence shows in a batch, or at the checkpoint of the epoch's end, before the next one.
    gone = max(left["step"], step)
    assert first == back["last_update"] + 1 and last - first >= back["step"] - gone - 1
    assert back["from_checkpoint"] <= gone and back["lost_steps"][1] == back["step"] - 1
    assert_losses(log)
    for name in PARTIES:
        assert not [e for e in read_log(tmp_path / name) if "made already" in e.get("reason", "")]
    lines = {(line["mode"], line["party"]): line for line in federated_lines(tmp_path)}
    expected = [("local", name) for name in PARTIES] + [("collaborative", "all")]
    assert all(lines[each]["rows"] > 0 and not lines[each]["reason"] for each in expected)


def assert_losses(log: list[dict[str, Any]]) -> None:
    """See that what each party lost reaches back no further than its last checkpoint."""
    saved, left = [0], dict[str, int]()
    for event in log:
        if event["event"] == "checkpoint":
            saved.append(event["step"])
        if event["event"] == "party_left":
            left[event["party"]] = saved[-3:][0]
        if event["event"] == "party_joined" and event["lost_updates"]:
            oldest = left.pop(event["party"], saved[-3:][0])
            assert oldest <= event["from_checkpoint"] and event["from_checkpoint"] in saved
            first, last = event["lost_steps"]
            assert event["from_checkpoint"] <= first <= last <= event["step"]


def show(table: list[tuple[Any, ...]], log: list[dict[str, Any]], gaps: dict[str, float]) -> None:
    """Print what was done and what it cost."""
    print("\n step  fault        whom")
    for step, fault, whom in table:
        print(f"{step:5}  {fault:12} {whom}")
    for event in log:
        if event["event"] in ("party_left", "resumed") or event.get("lost_updates"):
            rest = {k: v for k, v in event.items() if k not in ("time", "event", "reason")}
            print(f"  {event['event']:8} {re.sub(r'[{}]', '', str(rest))}")
    for name, gap in gaps.items():
        print(f"accuracy with faults less without, {name}: {100 * gap:+.2f} points")
