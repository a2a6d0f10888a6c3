"""`xvfl demo --federated`: a coordinator and two parties as separate processes on one machine.

The data are the digits of `xvfl demo`. The processes use mutual TLS with generated certificates,
and match ids privately. Each party trains its encoder alone and uploads embeddings once. Then both
are stopped, and the coordinator trains the head without them. The modes of the result are compared
with a random forest of each party alone.
"""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import train_test_split

from xvfl.certs import create_authority
from xvfl.cli.demo_data import PARTIES, load_halves, sample_incomplete, sample_missing
from xvfl.config import EncoderConfig, TrainConfig
from xvfl.errors import RunError
from xvfl.model.run_dir import EVALUATION, RunDir
from xvfl.service.head_store import HeadStore
from xvfl.system.event_log import read_log

Lines = list[dict[str, Any]]
"""Evaluation results, one entry per mode and party."""
Event = dict[str, Any]
OVERLAP, RATE, SEED = 0.4, 0.5, 0
"""Share of rows that are complete at both parties, missing rate of the others, and random seed."""
ABSENT = 0.05
"""Share of the rows that a party does not hold."""
TRAIN = TrainConfig(
    epochs=15, batch_size=64, learning_rate=1e-3, patience=0, device="cpu", random_state=SEED
)
ENCODER = EncoderConfig(epochs=24)
TEST = 0.3
"""Share of test rows."""
WAIT_S = 600.0
"""Maximum time in seconds for the rest of a run, also on a busy machine."""
POLL_S = 0.1
ALL = "all"
"""The party of the line of `collaborative`."""
WHO_DECIDES = {
    "alone": "a random forest of its own features",
    "local": "the party alone, with the head",
    "assisted": "the coordinator, if a row has gaps",
    "peers": "the coordinator, without the party",
    "collaborative": "the coordinator, with both",
}
"""Modes and what they mean, in a few words."""
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


def run_federated(
    out: Path, console: Console, train: TrainConfig = TRAIN, encoder: EncoderConfig = ENCODER
) -> None:
    """Train in three processes without parties after their upload; compare with parties alone."""
    folder = RunDir(out).create()
    if any(out.iterdir()):
        raise RunError(f"{out}: expected an empty folder; choose another --out")
    write_files(out)
    console.print(
        "Three processes over mutual TLS: a coordinator with the labels, and two parties with one "
        "half of the digits each."
    )
    console.print("[bold]1. ids are matched; each party trains its encoder and uploads[/bold]")
    with Processes(out, console, train, encoder) as processes:
        processes.start()
        for name in PARTIES:
            processes.event("upload_received", party=name)
        processes.stop(*PARTIES)
        console.print("[bold]2. both parties are stopped; the head is trained without them[/bold]")
        alone = alone_lines(out)
        processes.event("finished")
        console.print("[bold]3. both parties start again, to receive the head[/bold]")
        for name in PARTIES:
            processes.launch(name)
        processes.wait()
        seconds = time.monotonic() - processes.started
    federated = federated_lines(out)
    console.print(_table([*alone, *federated]))
    _print_uploads(out, console)
    console.print(
        f"The three processes took {seconds:.0f} s. {out} has configurations, certificates and "
        f"state folders. Uploads, heads and curves in a browser: xvfl dashboard {out}",
        highlight=False,
        soft_wrap=True,
    )
    folder.write_json("metrics.json", {"alone": alone, "federated": federated})
    check_gain(alone, federated)


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


def alone_lines(out: Path) -> Lines:
    """Train and test a random forest on each party's table and the labels."""
    y, lines = pd.read_csv(out / "labels.csv", index_col="id")["digit"], []
    for name in PARTIES:
        table = pd.read_csv(out / f"{name}.csv", index_col="id")
        labels = y.loc[table.index]
        parts = train_test_split(table, labels, test_size=TEST, stratify=labels, random_state=SEED)
        forest = RandomForestClassifier(random_state=SEED).fit(parts[0], parts[2])
        accuracy = float(forest.score(parts[1], parts[3]))
        line = {"mode": "alone", "party": name, "rows": len(parts[1])}
        lines.append({**line, "metrics": {"accuracy": accuracy}})
    return lines


def federated_lines(out: Path) -> Lines:
    """Read the coordinator's evaluation."""
    head = HeadStore(RunDir(out / "coordinator")).current
    lines: Lines = head.read_json(EVALUATION)["lines"]
    return lines


def check_gain(alone: Lines, federated: Lines) -> None:
    """Raise an error unless `collaborative` is more accurate than each party alone."""
    best = max(each["metrics"]["accuracy"] for each in alone)
    reached = next(
        each["metrics"]["accuracy"] for each in federated if each["mode"] == "collaborative"
    )
    if reached <= best:
        raise RunError(
            f"expected a higher accuracy in `collaborative` than each party alone ({best:.3f}), "
            f"got {reached:.3f}"
        )


class Processes:
    """The processes of coordinator and parties; processes still running at the end are killed."""

    program: tuple[str, ...] = ("-m", "xvfl")
    """Arguments of Python that run the command line."""

    def __init__(
        self, out: Path, console: Console, train: TrainConfig, encoder: EncoderConfig
    ) -> None:
        """Prepare the processes."""
        self.out, self.console, self.train, self.encoder = out, console, train, encoder
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.started = time.monotonic()
        self._shown = dict.fromkeys(("coordinator", *PARTIES), 0)

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.running.values():
            if process.poll() is None:
                process.kill()
            process.wait()

    def start(self) -> None:
        """Start the coordinator, on any free port, and the parties."""
        given = {name: value for name, value in asdict(self.train).items() if value is not None}
        train = "".join(f"{name} = {json.dumps(value)}\n" for name, value in given.items())
        text = COORDINATOR.format(port=0, test=TEST, train=train)
        (self.out / "coordinator.toml").write_text(text)
        self.launch("coordinator")
        port = self.event("listening")["address"].rpartition(":")[2]
        encoder = f"[encoder]\nepochs = {self.encoder.epochs}\n"
        for name in PARTIES:
            text = PARTY.format(port=port, name=name) + encoder
            (self.out / f"{name}.toml").write_text(text)
            self.launch(name)

    def kill(self, name: str) -> None:
        """Kill a process (SIGKILL)."""
        self.running[name].send_signal(signal.SIGKILL)
        self.running[name].wait()

    def stop(self, *names: str) -> None:
        """Stop processes (SIGTERM)."""
        for name in names:
            self.running[name].terminate()
        for name in names:
            self.running[name].wait(WAIT_S)
        self._show()

    def wait(self) -> None:
        """Wait until all processes have finished successfully."""
        until = time.monotonic() + WAIT_S
        while any(process.poll() is None for process in self.running.values()):
            if time.monotonic() > until:
                raise RunError(f"the processes have not finished after {WAIT_S:g} s")
            self._show()
            time.sleep(POLL_S)
        self._show()
        for name, process in self.running.items():
            if process.returncode:
                raise self._failed(name)

    def launch(self, name: str) -> None:
        """Start the process of the coordinator or of a party."""
        command, more = ("party", ["--once"]) if name in PARTIES else ("coordinator", [])
        with (self.out / f"{name}.err").open("ab") as errors:
            self.running[name] = subprocess.Popen(
                [sys.executable, *self.program, command, f"{name}.toml", "--quiet", *more],
                cwd=self.out,
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )

    def event(self, kind: str, **details: str) -> Event:
        """Wait for an event in the coordinator's log with these details."""
        while True:
            ended = self.running["coordinator"].poll() is not None
            self._show()
            for event in read_log(self.out / "coordinator"):
                if {"event": kind, **details}.items() <= event.items():
                    return event
            if ended:
                raise self._failed("coordinator")
            time.sleep(POLL_S)

    def _failed(self, name: str) -> RunError:
        code, path = self.running[name].returncode, self.out / f"{name}.err"
        return RunError(f"{name}: exited with code {code}; see {path} and its log.jsonl")

    def _show(self) -> None:
        """Print the events since the last call."""
        seconds = time.monotonic() - self.started
        for name, shown in self._shown.items():
            events = read_log(self.out / name)
            self._shown[name] = len(events)
            for text in filter(None, map(self._describe, events[shown:])):
                line = escape(f"  {seconds:3.0f} s  {name}: {text}")
                self.console.print(f"[dim]{line}[/dim]", highlight=False, soft_wrap=True)

    def _describe(self, event: Event) -> str:
        """Say in words what happened; empty for events that are not shown."""
        kind, party = event["event"], event.get("party")
        if kind == "epoch":
            epoch, last = event["epoch"], self.train.epochs
            return "" if epoch % 5 else f"epoch {epoch} of {last}"
        texts: dict[str, Callable[[], str]] = {
            "listening": lambda: f"listens at {event['address']}",
            "started": lambda: f"starts with a table of {event['rows']} rows",
            "matched": lambda: f"shares {event['rows']} ids with {party or 'the coordinator'}",
            "encoder_training": lambda: f"trains its encoder on {event['rows']} rows, alone",
            "encoder_progress": lambda: f"encoder {event['percent']} % trained",
            "encoder_failed": lambda: f"its encoder is not trained: {event['reason']}",
            "upload_received": lambda: f"has stored the upload of {party}",
            "run_started": lambda: f"trains a head on the uploads, {event['rows']} rows",
            "finished": lambda: "the head is trained and evaluated",
            "released": lambda: f"head sent to {party}" if party else "head received",
            "stopped": lambda: f"stopped ({event['reason']})",
        }
        return texts[kind]() if kind in texts else ""


def _table(lines: Lines) -> Table:
    """List the accuracy of each mode, and of parties alone; a column for each party and for all."""
    table = Table("", *PARTIES, "both", "who decides", title="accuracy in %, on held-out rows")
    for mode, meaning in WHO_DECIDES.items():
        found = {each["party"]: each["metrics"] for each in lines if each["mode"] == mode}
        cells = (f"{100 * found[n]['accuracy']:.1f}" if n in found else "" for n in (*PARTIES, ALL))
        table.add_row(mode, *cells, meaning, end_section=mode == "alone")
    return table


def _print_uploads(out: Path, console: Console) -> None:
    stored = [each for each in read_log(out / "coordinator") if each["event"] == "upload_received"]
    sizes = ", ".join(f"{each['party']} {each['bytes'] / 2**20:.1f} MiB" for each in stored)
    console.print(
        f"What left the parties: blinded ids for the matching, and one upload each ({sizes}) with "
        f"the embeddings of {stored[0]['rows']} rows. What they received: which rows are held out, "
        "and the head; no gradients, and no embeddings of others."
    )
