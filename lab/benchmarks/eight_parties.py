"""A coordinator and eight parties, each in its own process, on loopback with mutual TLS.

    python lab/benchmarks/eight_parties.py [--epochs N] [--out FOLDER]

The demo's digits, a row of pixels for each party, with missing values, and the demo's training;
`--epochs` shortens it. Prints, as JSON, steps, seconds, accuracy of each way to predict and the
peak memory of every process; exits with code 1 if a process fails or the run does not complete.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.datasets import load_digits

from xvfl.certs import create_authority
from xvfl.cli.demo_federated import OVERLAP, PARTY, RATE, SEED, TEST, TRAIN
from xvfl.model.run_dir import EVALUATION
from xvfl.primitives.layout import Feature, Layout
from xvfl.system.event_log import read_log
from xvfl_lab.scenarios import Scenario

NAMES = tuple(f"row{i}" for i in range(8))
COORDINATOR = f"""\
listen = "127.0.0.1:0"
parties = {json.dumps(NAMES)}
state_dir = "coordinator"
test_fraction = {TEST}
[tls]
ca_certificate = "certs/ca.crt"
certificate = "certs/coordinator.crt"
private_key = "certs/coordinator.key"
[labels]
table = "labels.csv"
id_column = "id"
column = "digit"
[train]
epochs = EPOCHS
batch_size = {TRAIN.batch_size}
learning_rate = {TRAIN.learning_rate}
patience = 0
device = "cpu"
"""


def write_files(out: Path, epochs: int) -> None:
    """Write certificates, labels, and a table of one row of pixels for each party."""
    authority = create_authority(out / "certs")
    authority.issue("coordinator", hosts=("localhost", "127.0.0.1"))
    images, y = load_digits(return_X_y=True)
    layout = Layout(tuple(Feature(str(i), "numeric", 1) for i in range(8)))
    masks, _ = Scenario(OVERLAP, RATE).sample(len(y), [layout] * len(NAMES), SEED)
    ids = [f"digit-{i:04}" for i in range(len(y))]
    for i, name in enumerate(NAMES):
        authority.issue(name)
        values = np.where(masks[i].numpy(), images[:, 8 * i : 8 * i + 8], np.nan)
        frame = pd.DataFrame(values, columns=[f"pixel {j}" for j in range(8)])
        frame.insert(0, "id", ids)
        frame.to_csv(out / f"{name}.csv", index=False)
    pd.DataFrame({"id": ids, "digit": y}).to_csv(out / "labels.csv", index=False)
    (out / "coordinator.toml").write_text(COORDINATOR.replace("EPOCHS", str(epochs)))


def start(out: Path, command: str, name: str) -> "subprocess.Popen[bytes]":
    """Start the command of a party or the coordinator."""
    more = ["--once"] if command == "party" else []
    return subprocess.Popen(
        [sys.executable, "-m", "xvfl", command, f"{name}.toml", "--quiet", *more],
        cwd=out,
        stdout=subprocess.DEVNULL,
    )


def listening_at(out: Path, process: "subprocess.Popen[bytes]") -> str:
    """Wait until the coordinator listens; return its port."""
    while process.poll() is None:
        for event in read_log(out / "coordinator"):
            if event["event"] == "listening":
                return str(event["address"]).rpartition(":")[2]
        time.sleep(0.05)
    raise SystemExit(f"the coordinator ended with code {process.returncode}")


def wait(process: "subprocess.Popen[bytes]", name: str) -> float:
    """Wait for a process to succeed; return its peak memory in MB."""
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{name} ended with code {process.returncode}")
    return round(used.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10), 1)


def completed(log: list[dict[str, Any]], epochs: int) -> dict[str, Any]:
    """Return the last epoch of a run that completed all epochs with all parties."""
    last = next((each for each in reversed(log) if each["event"] == "epoch"), {})
    finished = any(each["event"] == "finished" for each in log)
    if not finished or (last.get("epoch"), last.get("parties")) != (epochs, len(NAMES)):
        raise SystemExit(f"expected {epochs} epochs with {len(NAMES)} parties, got {last}")
    return last


def measure(out: Path, epochs: int) -> dict[str, Any]:
    """Train with all parties; return time, memory and accuracy."""
    write_files(out, epochs)
    started = time.monotonic()
    running = {"coordinator": start(out, "coordinator", "coordinator")}
    try:
        port = listening_at(out, running["coordinator"])
        for name in NAMES:
            text = PARTY.format(port=port, name=name)
            kept = [line for line in text.splitlines() if not line.startswith("release_key")]
            (out / f"{name}.toml").write_text("\n".join(kept))
            running[name] = start(out, "party", name)
        memory = {name: wait(process, name) for name, process in running.items()}
    finally:
        for process in running.values():
            if process.returncode is None:
                process.kill()
    seconds = time.monotonic() - started
    last = completed(read_log(out / "coordinator"), epochs)
    lines = json.loads((out / "coordinator" / EVALUATION).read_text())["lines"]
    return {
        "cores": os.cpu_count(),
        "epochs": epochs,
        "steps": last["step"],
        "seconds": round(seconds, 1),
        "seconds_training": last["seconds"],
        "accuracy": {
            f"{each['mode']} {each['party']}": each["metrics"].get("accuracy") for each in lines
        },
        "peak_rss_mb": memory,
    }


def main() -> None:
    """Run the benchmark in a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=TRAIN.epochs)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        print(json.dumps(measure(options.out or Path(scratch), options.epochs), indent=2))


if __name__ == "__main__":
    main()
