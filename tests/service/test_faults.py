"""Processes of an interactive run killed and cut off: the weights stay the same.

`test_interactive_run` compares them to the last bit; two processes round differently.
"""

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.processes import free_port
from tests.service.test_service import COORDINATOR, INTERACTIVE, SHOP, start, write
from tests.wire.proxy import Proxy, proxy
from xvfl.model.run_dir import CHECKPOINT, MODEL, RunDir
from xvfl.system.event_log import read_log

pytestmark = pytest.mark.slow
EPOCHS = 20
FAULTS = {4: "kill shop", 8: "cut", 12: "kill main"}
"""By epoch; the faults strike somewhere in the next one."""
ROUNDING = 1e-3
"""Largest difference by rounding; one lost update changes weights by the learning rate, 0.01."""
TIMEOUTS = "[timeouts]\nanswer = 60.0\n"
COMMANDS = {"main": ("coordinator", "coordinator.toml"), "shop": ("party", "shop.toml")}
Processes = dict[str, "subprocess.Popen[str]"]


@pytest.fixture
def running() -> Iterator[Processes]:
    """The running processes; those that are left are killed."""
    processes: Processes = {}
    yield processes
    for each in processes.values():
        each.kill()
        each.communicate()


def launch(folder: Path, running: Processes, name: str) -> None:
    running[name] = start(folder, *COMMANDS[name])


def kill(running: Processes, name: str) -> None:
    running[name].kill()
    running[name].communicate()


def wait_for(folder: Path, event: str, at_least: int, running: Processes) -> None:
    """Wait for an event of an epoch or a step."""
    until = time.monotonic() + 300
    key = {"epoch": "epoch", "checkpoint": "step"}[event]
    while not any(e["event"] == event and e[key] >= at_least for e in read_log(folder / "main")):
        assert running["main"].poll() is None, running["main"].communicate()
        assert time.monotonic() < until
        time.sleep(0.01)


def strike(fault: str, folder: Path, running: Processes, between: Proxy) -> None:
    if fault == "cut":
        between.drop_connections()
        return
    name = fault.split()[1]
    kill(running, name)
    if name == "shop":
        _, err = running["main"].communicate(timeout=300)
        assert running["main"].returncode == 2 and "start this command again" in err
        launch(folder, running, "main")
    launch(folder, running, name)


def finish(running: Processes) -> None:
    for process in running.values():
        _, err = process.communicate(timeout=600)
        assert process.returncode == 0, err


def weights(folder: Path) -> dict[str, Tensor]:
    """Return the weights of the heads and of both parties."""
    found = dict(RunDir(folder / "main").load_tensors(MODEL)[0])
    for party in ("main/bank", "shop"):
        last = sorted((folder / party).glob("checkpoint-*.safetensors"))[-1]
        tensors, _ = RunDir(last.parent).load_tensors(last.name)
        found |= {f"{party}/{key}": value for key, value in tensors.items()}
    return found


def test_faults_change_no_weight(tmp_path: Path, running: Processes) -> None:
    """Two runs continue from one checkpoint: without faults, and with kills and a cut."""
    first, port = tmp_path / "first", free_port()
    first.mkdir()
    write(first)
    config = COORDINATOR.replace("127.0.0.1:0", f"127.0.0.1:{port}", 1)
    config = config.replace("epochs = 12", f"epochs = {EPOCHS}").replace(
        'release_to = ["shop"]', ""
    )
    (first / "coordinator.toml").write_text(config + INTERACTIVE[0] + TIMEOUTS)
    with proxy(port) as between:
        (first / "shop.toml").write_text(INTERACTIVE[1] + SHOP.replace("PORT", str(between.port)))
        for name in COMMANDS:
            launch(first, running, name)
        wait_for(first, "checkpoint", 5, running)
        for name in COMMANDS:
            kill(running, name)
        second = tmp_path / "second"
        shutil.copytree(first, second)
        # Faults are counted from the epochs of this run.
        (second / "main" / "log.jsonl").unlink()
        for name in COMMANDS:
            launch(first, running, name)
        finish(running)
        for name in COMMANDS:
            launch(second, running, name)
        for epoch, fault in FAULTS.items():
            wait_for(second, "epoch", epoch, running)
            strike(fault, second, running, between)
        finish(running)
    # A connection that is restored in time does not end the run.
    resumed = [each for each in read_log(second / "main") if each["event"] == "resumed"]
    assert len(resumed) == 3
    expected, found = weights(first), weights(second)
    assert expected.keys() == found.keys()
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=0, atol=ROUNDING, msg=key)
    assert (second / "main" / CHECKPOINT).is_file()
    records = [RunDir(each / "main").records() for each in (first, second)]
    for ours, theirs in zip(*records, strict=True):
        assert [ours[key] for key in ("epoch", "step")] == [
            theirs[key] for key in ("epoch", "step")
        ]
        assert ours["score"] == pytest.approx(theirs["score"], abs=ROUNDING)
