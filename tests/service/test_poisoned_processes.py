"""A party that poisons its answers, in processes: the coordinator notices it and continues."""

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_digits

from tests.command_line import run_xvfl
from tests.processes import ROOT
from tests.service.test_service import start, wait_for
from xvfl.certs import create_authority
from xvfl.cli.output import FINISHED_WITHOUT
from xvfl.service.log import read_log

PARTIES = ("left", "middle", "right")
DISHONEST = "right"
EPOCHS = 4
COORDINATOR = f"""\
listen = "127.0.0.1:0"
parties = ["left", "middle", "right"]
revocation_list = "certs/ca.crl"
state_dir = "coordinator"
status_address = "127.0.0.1:0"
min_parties = 2
on_anomaly = "leave_out"
[tls]
ca_certificate = "certs/ca.crt"
certificate = "certs/coordinator.crt"
private_key = "certs/coordinator.key"
[labels]
table = "labels.csv"
id_column = "id"
column = "digit"
[net]
embedding_dim = 64
hidden_dim = 128
[train]
epochs = {EPOCHS}
batch_size = 64
learning_rate = 0.005
patience = 0
device = "cpu"
"""
PARTY = """\
coordinator = "localhost:PORT"
table = "NAME.csv"
id_column = "id"
state_dir = "NAME"
revocation_list = "certs/ca.crl"
[tls]
ca_certificate = "certs/ca.crt"
certificate = "certs/NAME.crt"
private_key = "certs/NAME.key"
"""
PAUSE_AFTER_EVERY_EPOCH = """
import pathlib, runpy, time
from xvfl.service.log import EventLog

write = EventLog.write

def write_and_pause(self, event):
    write(self, event)
    while event["event"] == "epoch" and not pathlib.Path(f"continue-{event['epoch']}").exists():
        time.sleep(0.01)

EventLog.write = write_and_pause
runpy.run_module("xvfl", run_name="__main__", alter_sys=True)
"""
"""The command line; training pauses after an epoch until the file `continue-EPOCH` exists."""
POISONED_PARTY = f"""
import runpy, sys
sys.path.insert(0, {str(ROOT)!r})
runpy.run_module("tests.service.poisoned_party", run_name="__main__")
"""
KINDS = {
    "times_1000": {"scale"},
    "noise": {"drift"},
    "constant": {"constant"},
    "replay": {"repeat"},
}
"""How each attack may be noticed first."""
pytestmark = pytest.mark.slow
Process = subprocess.Popen[str]


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[dict[str, Process]]:
    """A coordinator and three parties, one of which can poison its answers."""
    write_files(tmp_path)
    running = {
        "coordinator": start(
            tmp_path, "coordinator", "coordinator.toml", code=PAUSE_AFTER_EVERY_EPOCH
        )
    }
    try:
        event = wait_for(tmp_path / "coordinator", "listening", running["coordinator"])
        port = str(event["address"]).rpartition(":")[2]
        for name in PARTIES:
            text = PARTY.replace("NAME", name).replace("PORT", port)
            (tmp_path / f"{name}.toml").write_text(text)
            code = POISONED_PARTY if name == DISHONEST else ""
            running[name] = start(tmp_path, "party", f"{name}.toml", code=code)
        yield running
    finally:
        for process in running.values():
            process.kill()
            process.communicate()


def write_files(folder: Path) -> None:
    """Write certificates, the labels, and a third of the digits' columns for each party."""
    authority = create_authority(folder / "certs")
    authority.issue("coordinator", hosts=("localhost",))
    x, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    missing = (rng.random((len(x), 1)) < 0.3) & (rng.random(x.shape) < 0.5)
    pixels = pd.DataFrame(np.where(missing, np.nan, x), columns=[f"p{i}" for i in range(64)])
    pixels.index = pd.Index([f"d{i:04}" for i in range(len(x))], name="id")
    for i, name in enumerate(PARTIES):
        authority.issue(name)
        columns = [f"p{j}" for j in range(64) if j % 8 * 3 // 8 == i and x[:, j].any()]
        pixels[columns].to_csv(folder / f"{name}.csv")
    pd.DataFrame({"digit": y}, index=pixels.index).to_csv(folder / "labels.csv")
    (folder / "coordinator.toml").write_text(COORDINATOR)


def wait_for_epoch(folder: Path, epoch: int, process: Process) -> None:
    until = time.monotonic() + 600
    while epoch not in [e["epoch"] for e in read_log(folder) if e["event"] == "epoch"]:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until, epoch
        time.sleep(0.05)


def coordinator_status(folder: Path) -> dict[str, dict[str, object]]:
    (event,) = [e for e in read_log(folder) if e["event"] == "status_server"]
    shown = run_xvfl("status", f"127.0.0.1:{event['port']}", "--json")
    assert shown.code == 0, shown.err
    values: dict[str, dict[str, object]] = json.loads(shown.out)
    return values


@pytest.mark.parametrize("attack", KINDS)
def test_an_attack_is_noticed_in_its_epoch_and_the_party_is_left_out(
    attack: str, tmp_path: Path, federation: dict[str, Process]
) -> None:
    main, folder = federation["coordinator"], tmp_path / "coordinator"
    wait_for_epoch(folder, 1, main)
    status = coordinator_status(folder)
    assert status["party_anomalies"] == dict.fromkeys(PARTIES, 0)
    assert status["party_present"] == dict.fromkeys(PARTIES, 1)
    (tmp_path / "attack").write_text(attack)
    (tmp_path / "continue-1").touch()
    wait_for_epoch(folder, 2, main)

    (anomaly,) = [e for e in read_log(folder) if e["event"] == "party_anomaly"]
    assert (anomaly["party"], anomaly["epoch"]) == (DISHONEST, 2)
    assert anomaly["kind"] in KINDS[attack]
    status = coordinator_status(folder)
    assert status["party_anomalies"] == {"left": 0, "middle": 0, DISHONEST: 1}
    last = {"left": "none", "middle": "none", DISHONEST: f"{anomaly['kind']}, epoch 2"}
    assert status["party_last_anomaly"] == last
    assert status["party_excluded"] == {"left": 0, "middle": 0, DISHONEST: 1}
    for epoch in range(2, EPOCHS + 1):
        (tmp_path / f"continue-{epoch}").touch()

    _, err = main.communicate(timeout=600)
    assert main.returncode == FINISHED_WITHOUT, err
    reason = f"party '{DISHONEST}' sent suspicious values ({anomaly['kind']})"
    assert err.splitlines()[-1].startswith(f"finished without {DISHONEST} (excluded: {reason}")
    manifest = json.loads((folder / "manifest.json").read_text())
    assert list(manifest["absent"]) == [DISHONEST] and reason in manifest["absent"][DISHONEST]
    took_part = manifest["participation"]
    assert took_part["left"]["batches"] == took_part["left"]["of_batches"] == manifest["step"]
    assert took_part[DISHONEST]["batches"] < took_part[DISHONEST]["of_batches"]
    lines = json.loads((folder / "evaluation.json").read_text())["lines"]
    (together,) = [line for line in lines if line["mode"] == "collaborative"]
    assert together["parties"] == ["left", "middle"]
    # About 0.5 after so few epochs; guessing has 0.1.
    assert together["metrics"]["accuracy"] > 0.25
    for name in ("left", "middle"):
        assert federation[name].wait(600) == 0
    _, err = federation[DISHONEST].communicate(timeout=600)
    assert federation[DISHONEST].returncode == 2 and reason in err.splitlines()[-1]
