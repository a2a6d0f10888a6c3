"""`xvfl demo --federated`: coordinator and two parties as processes of their own, on loopback.

The digits of `xvfl demo`, halved between two parties; mutual TLS with certificates of a small
authority made for it; ids matched privately; one party killed in the middle and started again.
Beside it the same configuration in one process, to compare with.
"""

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from xvfl.certs import create_authority
from xvfl.cli.demo_data import PARTIES, load_halves, sample_incomplete, sample_missing
from xvfl.config import LossConfig, NetConfig, TableOptions, TrainConfig
from xvfl.data.frames import read_table
from xvfl.data.labels import read_labels
from xvfl.dataset.in_memory import prepare_in_memory
from xvfl.dataset.splits import Splits
from xvfl.errors import RunError
from xvfl.federation.fused import FusedFederation
from xvfl.federation.party_worker import PartyWorker
from xvfl.model.evaluation import EVALUATION, evaluate, federation_predictions
from xvfl.model.fitting import TrainingPlan, fit
from xvfl.model.run_dir import RunDir
from xvfl.service.log import read_log

Lines = list[dict[str, Any]]
"""What was measured, a line for each way to predict."""
OVERLAP, RATE, ABSENT, SEED = 0.4, 0.5, 0.05, 0
TRAIN = TrainConfig(
    epochs=60, batch_size=64, learning_rate=1e-3, patience=0, device="cpu", random_state=SEED
)
"""The rate is low so that runs which part, by rounding or by a fault, end in nearly the same
decisions; at higher ones they scatter by about a point."""
TEST = 0.3
KILLED_AT = 0.3
"""Share of the steps after which a party is killed."""
WITHIN = 0.01
"""How far from the run in one process the accuracy may be."""
WAIT_S = 600.0
"""Seconds for what is left of a run, on a machine that is busy besides."""
COORDINATOR = """\
listen = "127.0.0.1:{port}"
parties = ["left", "right"]
state_dir = "coordinator"
revocation_list = "certs/ca.crl"
test_fraction = {test}
min_parties = {minimum}
checkpoint_interval = 10
release_to = ["left", "right"]
[tls]
ca_certificate = "certs/ca.crt"
certificate = "certs/coordinator.crt"
private_key = "certs/coordinator.key"
[labels]
table = "labels.csv"
id_column = "id"
column = "digit"
[timeouts]
min_answer = 2.0
[train]
epochs = {epochs}
batch_size = {batch}
learning_rate = {rate}
patience = 0
device = "cpu"
random_state = {seed}
"""
PARTY = """\
coordinator = "localhost:{port}"
table = "{name}.csv"
id_column = "id"
state_dir = "{name}"
release_key = "coordinator/release.pub"
[tls]
ca_certificate = "certs/ca.crt"
certificate = "certs/{name}.crt"
private_key = "certs/{name}.key"
"""


def run_federated(out: Path, console: Console, train: TrainConfig = TRAIN) -> None:
    """Start everything, kill a party in the middle, start it again, compare."""
    folder = RunDir(out).create()
    if any(out.iterdir()):
        raise RunError(f"{out}: expected an empty folder; choose another --out")
    write_files(out)
    console.print(
        "Three processes on loopback over mutual TLS: a coordinator with the labels, two parties\n"
        "with one half of the digits each. In the middle one party is killed and started again."
    )
    started = time.monotonic()
    with Processes(out, console, train) as processes:
        processes.start()
        steps = _kill_and_restart(processes, "right")
        processes.wait()
    seconds = time.monotonic() - started
    ours: Lines = folder_lines(out)
    theirs = in_one_process(out, train)
    console.print(_table(ours, theirs))
    _losses(out, console)
    gaps = gaps_between(ours, theirs)
    shown = ", ".join(f"{name} {100 * gap:+.2f}" for name, gap in gaps.items())
    console.print(f"{steps} steps in {seconds:.0f} s; points from one process: {shown}")
    folder.write_json("metrics.json", {"federated": ours, "one_process": theirs, "gaps": gaps})
    if far := {name: gap for name, gap in gaps.items() if abs(gap) > WITHIN}:
        found = ", ".join(f"{name} {gap:+.2%}" for name, gap in far.items())
        raise RunError(f"expected accuracy within {WITHIN:.0%} of one process, got {found}")


def write_files(out: Path) -> None:
    """Write certificates, labels, and each party's table.

    A table is a half of the digits with gaps, its rows shuffled and some of them absent.
    """
    authority = create_authority(out / "certs")
    authority.issue("coordinator", hosts=("localhost", "127.0.0.1"))
    for name in PARTIES:
        authority.issue(name)
    tables, y = load_halves()
    rng, mask_rng = np.random.default_rng(SEED), np.random.default_rng(SEED)
    incomplete = sample_incomplete(len(y), OVERLAP, mask_rng)
    for i, (name, table) in enumerate(tables.items()):
        held = rng.permutation(len(y))[: round((1 - ABSENT) * len(y))]
        missing = sample_missing(incomplete[:, i], RATE, mask_rng)
        table.mask(missing).iloc[held].to_csv(out / f"{name}.csv")
    y.to_csv(out / "labels.csv")


def in_one_process(out: Path, train: TrainConfig) -> Lines:
    """Train and evaluate the same configuration without any wire."""
    sources = {n: read_table(str(out / f"{n}.csv"), id_column="id", party=n) for n in PARTIES}
    labels = read_labels(str(out / "labels.csv"), id_column="id", column="digit", where="labels")
    options = {name: TableOptions() for name in PARTIES}
    splits = Splits(TEST, train.validation_fraction, train.random_state)
    prepared = prepare_in_memory(sources, labels, options, splits, None, train.class_weight)
    fitted = fit(prepared, TrainingPlan(NetConfig(), LossConfig(), train))
    sides = [
        PartyWorker(name, fitted.model.parties[name], prepared.tables[name], [train.random_state])
        for name in PARTIES
    ]
    rows = prepared.rows.take(prepared.test)
    with torch.random.fork_rng(devices=[]):
        predictions = federation_predictions(fitted.model.method, FusedFederation(sides), rows)
        lines: Lines = evaluate(predictions, "test").to_dict()["lines"]
    return lines


def gaps_between(ours: Lines, theirs: Lines) -> dict[str, float]:
    """Compare two runs' accuracies: all together, and the mean over every way to predict."""
    pairs = list(zip(ours, theirs, strict=True))
    each = [a["metrics"]["accuracy"] - b["metrics"]["accuracy"] for a, b in pairs]
    together = next(i for i, (a, _) in enumerate(pairs) if a["mode"] == "collaborative")
    return {"collaborative": each[together], "mean of all lines": float(np.mean(each))}


def folder_lines(out: Path) -> Lines:
    """Read what the coordinator measured."""
    lines: Lines = RunDir(out / "coordinator").read_json(EVALUATION)["lines"]
    return lines


class Processes:
    """Coordinator and parties; whatever still runs at the end is stopped."""

    def __init__(self, out: Path, console: Console, train: TrainConfig, minimum: int = 1) -> None:
        """Write the configurations; `minimum` parties keep the training going."""
        self.out, self.console, self.train, self.minimum = out, console, train, minimum
        self.running: dict[str, subprocess.Popen[str]] = {}

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.running.values():
            if process.poll() is None:
                process.kill()
            process.wait()

    def start(self, port: int = 0, dial: int = 0) -> None:
        """Start the coordinator, see where it listens, start the parties; 0 = any port."""
        said = {
            "test": TEST,
            "minimum": self.minimum,
            "epochs": self.train.epochs,
            "batch": self.train.batch_size,
            "rate": self.train.learning_rate,
            "seed": self.train.random_state,
        }
        (self.out / "coordinator.toml").write_text(COORDINATOR.format(port=port, **said))
        self.launch("coordinator")
        found = self.event("listening")["address"].rpartition(":")[2]
        for name in PARTIES:
            (self.out / f"{name}.toml").write_text(PARTY.format(port=dial or found, name=name))
            self.launch(name)

    def kill(self, name: str) -> None:
        """Kill a process as a power cut would."""
        self.running[name].send_signal(signal.SIGKILL)
        self.running[name].wait()

    def wait(self) -> None:
        """Wait for all_parties to end well."""
        for name, process in self.running.items():
            if process.wait(WAIT_S):
                raise RunError(f"{name}: ended with code {process.returncode}; see its log.jsonl")

    def launch(self, name: str) -> None:
        """Start a side's command."""
        command = "party" if name in PARTIES else "coordinator"
        process = subprocess.Popen(
            [sys.executable, "-m", "xvfl", command, f"{name}.toml"],
            cwd=self.out,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.running[name] = process
        threading.Thread(target=self._show, args=(name, process), daemon=True).start()

    def _show(self, name: str, process: "subprocess.Popen[str]") -> None:
        assert process.stderr is not None
        with process.stderr:
            for line in process.stderr:
                often = ": epoch " in line and not line.split("epoch=")[1].split()[0].endswith("0")
                if not often and ": checkpoint " not in line:
                    text = line.rstrip()[: self.console.width - 8]
                    self.console.print(f"[dim]{process.pid}[/dim] {text}", highlight=False)

    def event(self, kind: str, holds: Any = lambda event: True) -> dict[str, Any]:
        """Wait for an event in the coordinator's log."""
        while True:
            for event in read_log(self.out / "coordinator"):
                if event["event"] == kind and holds(event):
                    return event
            if (code := self.running["coordinator"].poll()) is not None:
                raise RunError(f"the coordinator ended with code {code}; see its log.jsonl")
            time.sleep(0.1)


def _kill_and_restart(processes: Processes, name: str) -> int:
    wanted = KILLED_AT * processes.train.epochs
    processes.event("epoch", lambda event: event["epoch"] >= wanted)
    processes.kill(name)
    processes.console.print(f"[bold]killed {name} (SIGKILL); starting it again[/bold]")
    processes.launch(name)
    last = processes.event("epoch", lambda event: event["epoch"] == processes.train.epochs)
    return int(last["step"])


def _table(ours: Lines, theirs: Lines) -> Table:
    table = Table(title="accuracy in % on held-out rows")
    for name in ("mode", "party", "rows", "three processes", "one process", "difference"):
        table.add_column(name, justify="left" if name in ("mode", "party") else "right")
    for a, b in zip(ours, theirs, strict=True):
        first, second = (100 * line["metrics"]["accuracy"] for line in (a, b))
        cells = (f"{first:.1f}", f"{second:.1f}", f"{first - second:+.1f}")
        table.add_row(a["mode"], a["party"], str(a["rows"]), *cells)
    return table


def _losses(out: Path, console: Console) -> None:
    for event in read_log(out / "coordinator"):
        if event["event"] == "party_joined" and event["lost_updates"]:
            first, last = event["lost_steps"]
            console.print(
                f"{event['party']} came back at step {event['step']} from its checkpoint of step "
                f"{event['from_checkpoint']}; its updates of steps {first} to {last} are lost"
            )
