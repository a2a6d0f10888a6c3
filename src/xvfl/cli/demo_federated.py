"""`xvfl demo --federated`: a coordinator and two parties as separate processes on one machine.

The data are the digits of `xvfl demo`. The processes use mutual TLS with generated certificates,
and match ids privately. Each party trains its encoder alone and uploads embeddings once. Then both
are stopped, and the coordinator trains the head without them. The result is compared with training
in one process, where all tables are together.
"""

import json
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from xvfl.certs import create_authority
from xvfl.cli.demo_data import PARTIES, load_halves, sample_incomplete, sample_missing
from xvfl.cli.output import new_table
from xvfl.config import LossConfig, NetConfig, TrainConfig
from xvfl.data.frames import read_table
from xvfl.data.labels import read_labels
from xvfl.dataset.in_memory import prepare_in_memory
from xvfl.dataset.prepare import PreparationPlan
from xvfl.dataset.splits import Splits
from xvfl.errors import RunError
from xvfl.model.evaluation import EVALUATION, evaluate, federation_predictions
from xvfl.model.fitting import TrainingPlan, fit, resolve_for_dataset
from xvfl.model.run_dir import RunDir
from xvfl.service.head_store import HeadStore
from xvfl.service.log import read_log

Lines = list[dict[str, Any]]
"""Evaluation results, one entry per mode and party."""
OVERLAP, RATE, SEED = 0.4, 0.5, 0
"""Share of rows that are complete at both parties, missing rate of the others, and random seed."""
ABSENT = 0.05
"""Share of the rows that a party does not hold."""
TRAIN = TrainConfig(
    epochs=40, batch_size=64, learning_rate=1e-3, patience=0, device="cpu", random_state=SEED
)
TEST = 0.3
"""Share of test rows."""
TOLERANCE = 0.15
"""Maximum difference in accuracy from the training in one process, to detect a broken model."""
WAIT_S = 600.0
"""Maximum time in seconds for the rest of a run, also on a busy machine."""
HIDDEN = ("checkpoint", "connected", "disconnected", "matching_started")
"""Events of the logs that are not printed."""
COORDINATOR = """\
listen = "127.0.0.1:{port}"
parties = ["left", "right"]
state_dir = "coordinator"
revocation_list = "certs/ca.crl"
test_fraction = {test}
release_to = ["left", "right"]
[tls]
ca_certificate = "certs/ca.crt"
certificate = "certs/coordinator.crt"
private_key = "certs/coordinator.key"
[labels]
table = "labels.csv"
id_column = "id"
column = "digit"
[train]
{train}"""
PARTY = """\
coordinator = "localhost:{port}"
table = "{name}.csv"
id_column = "id"
state_dir = "{name}"
release_key = "coordinator/release.pub"
revocation_list = "certs/ca.crl"
[tls]
ca_certificate = "certs/ca.crt"
certificate = "certs/{name}.crt"
private_key = "certs/{name}.key"
"""


def run_federated(out: Path, console: Console, train: TrainConfig = TRAIN) -> None:
    """Train in three processes without parties after their upload; compare with one process."""
    folder = RunDir(out).create()
    if any(out.iterdir()):
        raise RunError(f"{out}: expected an empty folder; choose another --out")
    write_files(out)
    console.print(
        "Three processes over mutual TLS: a coordinator with the labels, and two parties with one "
        "half of the digits each."
    )
    console.print("[bold]1. ids are matched; each party trains its encoder and uploads[/bold]")
    started = time.monotonic()
    with Processes(out, console, train) as processes:
        processes.start()
        processes.event("run_started")
        for name in PARTIES:
            processes.stop(name)
        console.print("[bold]2. both parties are stopped; the head is trained without them[/bold]")
        steps = int(processes.event("finished")["step"])
        console.print("[bold]3. both parties start again, to receive the head[/bold]")
        for name in PARTIES:
            processes.launch(name)
        processes.wait()
    seconds = time.monotonic() - started
    console.print("[bold]4. for comparison, one process trains on all tables together[/bold]")
    federated, one_process = federated_lines(out), one_process_lines(out, train)
    console.print(_table(federated, one_process))
    _print_uploads(out, console)
    differences = accuracy_differences(federated, one_process)
    text = ", ".join(f"{name} {100 * value:+.2f}" for name, value in differences.items())
    console.print(
        f"The three processes took {seconds:.0f} s ({steps} steps of the head). Accuracy minus "
        f"that of one process, in percentage points: {text}"
    )
    console.print(
        f"{out} has configurations, certificates and state folders. "
        f"Uploads, heads and curves in a browser: xvfl dashboard {out}",
        highlight=False,
        soft_wrap=True,
    )
    metrics = {"federated": federated, "one_process": one_process, "differences": differences}
    folder.write_json("metrics.json", metrics)
    if any(abs(value) > TOLERANCE for value in differences.values()):
        raise RunError(
            f"expected an accuracy within {100 * TOLERANCE:g} percentage points of one process, "
            f"got a difference of {text}"
        )


def write_files(out: Path) -> None:
    """Write certificates, labels, and each party's table with missing values and absent rows."""
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


def one_process_lines(out: Path, train: TrainConfig) -> Lines:
    """Train and evaluate the same configuration in this process."""
    sources = {n: read_table(str(out / f"{n}.csv"), id_column="id", party=n) for n in PARTIES}
    labels = read_labels(str(out / "labels.csv"), id_column="id", column="digit")
    splits = Splits(TEST, train.validation_fraction, train.random_state)
    preparation = PreparationPlan({}, splits, class_weight=train.class_weight)
    prepared = prepare_in_memory(sources, labels, preparation)
    options = resolve_for_dataset(prepared, NetConfig(), LossConfig(), train)
    model = fit(prepared, TrainingPlan(options)).model
    rows = prepared.rows.take(prepared.test)
    with torch.random.fork_rng(devices=[]):
        predictions = federation_predictions(model.method, model.federation(prepared.tables), rows)
        lines: Lines = evaluate(predictions, "test").to_dict()["lines"]
    return lines


def accuracy_differences(first: Lines, second: Lines) -> dict[str, float]:
    """Subtract the accuracies of two runs: collaborative, and the mean of all modes."""
    pairs = list(zip(first, second, strict=True))
    each = [a["metrics"]["accuracy"] - b["metrics"]["accuracy"] for a, b in pairs]
    together = next(i for i, (a, _) in enumerate(pairs) if a["mode"] == "collaborative")
    return {"collaborative": each[together], "mean of all modes": float(np.mean(each))}


def federated_lines(out: Path) -> Lines:
    """Read the coordinator's evaluation."""
    head = HeadStore(RunDir(out / "coordinator")).current
    lines: Lines = head.read_json(EVALUATION)["lines"]
    return lines


class Processes:
    """The processes of coordinator and parties; processes still running at the end are killed."""

    program: ClassVar[tuple[str, ...]] = ("-m", "xvfl")
    """Arguments of Python that run the command line."""

    def __init__(self, out: Path, console: Console, train: TrainConfig) -> None:
        """Prepare the processes."""
        self.out, self.console, self.train = out, console, train
        self.running: dict[str, subprocess.Popen[str]] = {}

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.running.values():
            if process.poll() is None:
                process.kill()
            process.wait()

    def start(self, port: int = 0, dial: int = 0) -> None:
        """Start the coordinator and the parties.

        Parties connect to port `dial`, by default the coordinator's. Port 0 is any free port.
        """
        given = {name: value for name, value in asdict(self.train).items() if value is not None}
        train = "".join(f"{name} = {json.dumps(value)}\n" for name, value in given.items())
        text = COORDINATOR.format(port=port, test=TEST, train=train)
        (self.out / "coordinator.toml").write_text(text)
        self.launch("coordinator")
        listening = self.event("listening")["address"].rpartition(":")[2]
        for name in PARTIES:
            (self.out / f"{name}.toml").write_text(PARTY.format(port=dial or listening, name=name))
            self.launch(name)

    def kill(self, name: str) -> None:
        """Kill a process (SIGKILL)."""
        self.running[name].send_signal(signal.SIGKILL)
        self.running[name].wait()

    def stop(self, name: str) -> None:
        """Stop a process (SIGTERM)."""
        self.running[name].terminate()
        self.running[name].wait(WAIT_S)

    def wait(self) -> None:
        """Wait until all processes have finished successfully."""
        for name, process in self.running.items():
            if process.wait(WAIT_S):
                raise RunError(f"{name}: exited with code {process.returncode}; see its log.jsonl")

    def launch(self, name: str) -> None:
        """Start the process of the coordinator or of a party."""
        command = "party" if name in PARTIES else "coordinator"
        process = subprocess.Popen(
            [sys.executable, *self.program, command, f"{name}.toml"],
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
                skip = ": epoch " in line and not line.split("epoch=")[1].split()[0].endswith("0")
                if not skip and not any(f": {event} " in line for event in HIDDEN):
                    text = line.rstrip()[: self.console.width - 2]
                    self.console.print(f"  [dim]{escape(text)}[/dim]", highlight=False)

    def event(self, kind: str, condition: Any = lambda event: True) -> dict[str, Any]:
        """Wait for an event in the coordinator's log that meets a condition."""
        while True:
            for event in read_log(self.out / "coordinator"):
                if event["event"] == kind and condition(event):
                    return event
            if (code := self.running["coordinator"].poll()) is not None:
                raise RunError(f"the coordinator exited with code {code}; see its log.jsonl")
            time.sleep(0.1)


def _table(federated: Lines, one_process: Lines) -> Table:
    columns = ["mode", "party", "rows", "three processes", "one process", "difference"]
    table = new_table("accuracy in %; each way has test rows of its own", columns)
    for a, b in zip(federated, one_process, strict=True):
        first, second = (100 * line["metrics"]["accuracy"] for line in (a, b))
        cells = (f"{first:.1f}", f"{second:.1f}", f"{first - second:+.1f}")
        table.add_row(a["mode"], a["party"], str(a["rows"]), *cells)
    return table


def _print_uploads(out: Path, console: Console) -> None:
    for event in read_log(out / "coordinator"):
        if event["event"] == "upload_received":
            console.print(
                f"{event['party']} uploaded {event['rows']} rows once, "
                f"{event['bytes'] / 2**20:.1f} MiB; it received no gradients and no embeddings"
            )
