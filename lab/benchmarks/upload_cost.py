"""Bytes and time of training by one upload, beside version 0.3.0's default, over a slow link.

    python lab/benchmarks/upload_cost.py [--rows 20000] [--old-epochs 3] [--out FOLDER]

Coordinator and two parties as processes over mutual TLS: the coordinator on one machine, the
parties on another, each a network namespace, joined by a link with 25 ms in each direction (needs
root). Version 0.3.0 is its wheel in an environment of its own (`scripts/version`). Its default has
60 epochs; `--old-epochs` of them are run, and bytes and seconds of an epoch are multiplied. Both
are counted from the end of matching to the end of training. Prints JSON.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.two_machines import Machine, two_machines  # noqa: E402
from xvfl.certs import create_authority  # noqa: E402
from xvfl.system.event_log import read_log  # noqa: E402

OLD, OLD_EPOCHS = "d233049", 60
PARTIES = ("bank", "shop")
N_COLUMNS, DELAY_S, WAIT_S = 20, 0.025, 3600.0
COORDINATOR = """\
listen = "{address}:8443"
parties = ["bank", "shop"]
state_dir = "{version}/coordinator"
status_address = "127.0.0.1:8480"
[tls]
ca_certificate = "certs/ca.crt"
certificate = "certs/coordinator.crt"
private_key = "certs/coordinator.key"
[labels]
table = "labels.csv"
id_column = "id"
column = "y"
[train]
device = "cpu"
"""
PARTY = """\
coordinator = "{address}:8443"
table = "{name}.csv"
id_column = "id"
state_dir = "{version}/{name}"
[tls]
ca_certificate = "certs/ca.crt"
certificate = "certs/{name}.crt"
private_key = "certs/{name}.key"
"""


def write_tables(folder: Path, rows: int, address: str) -> int:
    """Write tables, labels and certificates; return the bytes of a raw row in float32."""
    rng = np.random.default_rng(0)
    ids, total = [f"c{i:06}" for i in range(rows)], np.zeros(rows)
    for name in PARTIES:
        x = rng.normal(size=(rows, N_COLUMNS)).astype(np.float32)
        total += x[:, :3].sum(1)
        frame = pd.DataFrame(x, columns=[f"{name}{i}" for i in range(N_COLUMNS)])
        frame = frame.mask(rng.random(x.shape) < 0.1)
        frame.insert(0, "id", ids)
        frame.to_csv(folder / f"{name}.csv", index=False)
    labels = pd.DataFrame({"id": ids, "y": np.where(total + rng.normal(size=rows) > 0, "a", "b")})
    labels.to_csv(folder / "labels.csv", index=False)
    authority = create_authority(folder / "certs")
    authority.issue("coordinator", hosts=(address, "localhost"))
    for name in PARTIES:
        authority.issue(name)
    return 4 * N_COLUMNS


def measure(
    folder: Path, version: str, python: list[str], epochs: int, machines: tuple[Machine, Machine]
) -> dict[str, Any]:
    """Train with one version; return bytes between the machines and seconds."""
    first, second = machines
    (folder / version).mkdir()
    text = COORDINATOR.format(address=first.address, version=version)
    if epochs:
        text += f"epochs = {epochs}\npatience = 0\n"
    (folder / f"{version}.toml").write_text(text)
    running = [_start(folder, first, python, "coordinator", f"{version}.toml")]
    for name in PARTIES:
        text = PARTY.format(address=first.address, name=name, version=version)
        (folder / f"{version}-{name}.toml").write_text(text)
        running.append(_start(folder, second, python, "party", f"{version}-{name}.toml"))
    try:
        log, before = folder / version / "coordinator", 0
        _wait(log, "matched", len(PARTIES), running[0])
        before, began = _bytes(second), _time(log, "matched")
        _wait(log, "finished", 1, running[0])
        return {"bytes": _bytes(second) - before, "seconds": _time(log, "finished") - began}
    finally:
        for process in running:
            process.kill()
            process.wait()


def _start(folder: Path, machine: Machine, python: list[str], *arguments: str) -> Any:
    return subprocess.Popen(
        machine.command(*python, "-m", "xvfl", *arguments, "--quiet"),
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _wait(folder: Path, event: str, count: int, process: Any) -> None:
    until = time.monotonic() + WAIT_S
    while sum(each["event"] == event for each in read_log(folder)) < count:
        if process.poll() is not None or time.monotonic() > until:
            raise SystemExit(f"{folder}: no event {event!r}")
        time.sleep(0.2)


def _time(folder: Path, event: str) -> float:
    """Return when an event last occurred."""
    times = [each["time"] for each in read_log(folder) if each["event"] == event]
    return datetime.fromisoformat(times[-1]).timestamp()


def _bytes(machine: Machine) -> int:
    """Return the bytes that a machine has sent and received over its link."""
    command = machine.command("cat", "/proc/net/dev")
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    (line,) = [each for each in text.splitlines() if each.strip().startswith("xvfl")]
    numbers = line.partition(":")[2].split()
    return int(numbers[0]) + int(numbers[8])


def main() -> None:
    """Measure both versions in turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--old-epochs", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    version = ROOT / "scripts" / "version"
    subprocess.run([version, OLD, "-c", "pass"], check=True)
    folder = options.out or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    with two_machines(DELAY_S, 0.0) as (first, second, _):
        raw = write_tables(folder, options.rows, first.address)
        machines = first, second
        old = measure(folder, "old", [str(version), OLD], options.old_epochs, machines)
        new = measure(folder, "new", [sys.executable], 0, machines)
    factor = OLD_EPOCHS / options.old_epochs
    old_whole = {name: factor * value for name, value in old.items()}
    result = {
        "rows": options.rows,
        "0.3.0": {**old, "epochs": options.old_epochs},
        "0.3.0, 60 epochs": old_whole,
        "one upload": new,
        "share of bytes": new["bytes"] / old_whole["bytes"],
        "share of seconds": new["seconds"] / old_whole["seconds"],
        "bytes of a row": new["bytes"] / options.rows / len(PARTIES),
        "bytes of a raw row": raw,
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
