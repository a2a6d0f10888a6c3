"""A federation of three parties that was trained here and predicts as processes over TLS."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.make_once import make_once
from tests.processes import ENVIRONMENT, free_port
from xvfl.certs import create_authority
from xvfl.config import LossConfig, NetConfig, TaskKind, build
from xvfl.methods.pooling import load_decision_weights
from xvfl.model.model import Model
from xvfl.model.run_dir import MODEL, RunDir
from xvfl.primitives.task import task_from_dict
from xvfl.service.config import load_coordinator_config, load_party_config
from xvfl.service.coordinator_service import CoordinatorService
from xvfl.service.head_store import HeadStore
from xvfl.service.party import open_party
from xvfl.service.party_inputs import PartyInputs
from xvfl.service.uploads.party_encoder import load_parts
from xvfl.system.event_log import read_log
from xvfl.wire.in_process import InProcessTransport

PARTIES = ("bank", "shop", "clinic")
WAIT_S = 300.0
N_TRAIN, N_NEW = 400, 160
DEADLINE_S = 20.0
"""Also enough on a busy machine."""
COORDINATOR = """\
listen = "127.0.0.1:0"
parties = ["bank", "shop", "clinic"]
state_dir = "main"
status_address = "127.0.0.1:0"
release_to = ["bank", "shop", "clinic"]
[tls]
ca_certificate = "certs/ca.crt"
certificate = "certs/coordinator.crt"
private_key = "certs/coordinator.key"
[labels]
table = "labels.csv"
id_column = "customer"
column = "churned"
task = "{task}"
[net]
hidden_dim = 128
[train]
epochs = 20
learning_rate = 0.01
batch_size = 64
patience = 0
device = "cpu"
[prediction]
ids = "new-ids.csv"
address = "127.0.0.1:{address}"
deadline = {deadline}
"""
PARTY = """\
coordinator = "localhost:{port}"
table = "{name}.csv"
id_column = "customer"
state_dir = "{name}"
release_key = "main/release.pub"
status_address = "127.0.0.1:0"
[tls]
ca_certificate = "certs/ca.crt"
certificate = "certs/{name}.crt"
private_key = "certs/{name}.key"
[encoder]
epochs = 30
embedding_dim = 32
hidden_dim = 64
skip_rank = 16
[prediction]
table = "{name}-new.csv"
address = "127.0.0.1:{address}"
deadline = 20.0
[prediction.limits]
max_per_row = {max_per_row}
"""


def train_federation(
    folder: Path,
    deadline: float = DEADLINE_S,
    task: TaskKind = "classification",
    n_new: int = N_NEW,
    more: str = "",
) -> None:
    """Write tables and certificates, and train with all parties in this process."""
    write_federation(folder, deadline, task, n_new, more)
    service = CoordinatorService(load_coordinator_config(folder / "coordinator.toml"), show=False)
    transports = {}
    for name in PARTIES:
        config = load_party_config(folder / f"{name}.toml")
        inputs = PartyInputs.load(name, config, RunDir(config.state_dir).create())
        endpoint = open_party(inputs, lambda event: None).endpoint
        transports[name] = InProcessTransport(endpoint.hello, endpoint.handle)
    service.connect(transports)
    outcome = service.run(Event())
    assert outcome.evaluation is not None


def write_federation(
    folder: Path,
    deadline: float = DEADLINE_S,
    task: TaskKind = "classification",
    n_new: int = N_NEW,
    more: str = "",
    hosts: Sequence[str] = (),
) -> None:
    """Write tables, certificates and configurations.

    The label is `yes` or `no`, or a number for regression. Party `bank` decides most of it. Of the
    new rows some are held by one party alone, some have missing features, and `nobody` is held by
    none. `more` is added to the configuration of each party.
    """
    rng = np.random.default_rng(7)
    ids = [f"c{i:04}" for i in range(N_TRAIN + n_new)]
    x = rng.normal(size=(len(ids), 9))
    signal = 2 * x[:, 0] + x[:, 3] + x[:, 6] + 0.3 * rng.normal(size=len(ids))
    classes, numbers = np.where(signal > 0, "yes", "no"), 500 + 40 * signal
    churned = numbers if task == "regression" else classes
    labels = pd.DataFrame({"customer": ids, "churned": churned})
    labels.iloc[:N_TRAIN].to_csv(folder / "labels.csv", index=False)
    labels.iloc[N_TRAIN:].to_csv(folder / "truth.csv", index=False)
    new = [*ids[N_TRAIN:], "nobody"]
    pd.DataFrame({"customer": new}).to_csv(folder / "new-ids.csv", index=False)
    for i, name in enumerate(PARTIES):
        features = x[:, 3 * i : 3 * i + 3].copy()
        features[rng.random(features.shape) < 0.1] = np.nan
        table = pd.DataFrame(features, columns=[f"{name}_{j}" for j in range(3)])
        table.insert(0, "customer", ids)
        table.iloc[:N_TRAIN].sample(frac=0.95, random_state=i).to_csv(
            folder / f"{name}.csv", index=False
        )
        # The first ten new rows are held by bank alone.
        start = N_TRAIN + (0 if name == "bank" else 10)
        opened = table.iloc[start:].sample(frac=0.95, random_state=10 + i)
        first = table.iloc[N_TRAIN + 10 : N_TRAIN + 12]
        pd.concat([opened, first]).drop_duplicates("customer").to_csv(
            folder / f"{name}-new.csv", index=False
        )
    authority = create_authority(folder / "certs")
    authority.issue("coordinator", hosts=("localhost", "127.0.0.1", *hosts))
    for name in PARTIES:
        authority.issue(name)
    (folder / "coordinator.toml").write_text(
        COORDINATOR.format(deadline=deadline, address=free_port(), task=task)
    )
    for name in PARTIES:
        write_party(folder, name, 1, more=more)


def copy_trained(
    factory: pytest.TempPathFactory, folder: Path | None = None, n_new: int = N_NEW
) -> Path:
    """Copy a federation that is trained once for all test processes; its port is another one."""
    train = partial(train_federation, n_new=n_new)
    trained = make_once(factory, f"trained{n_new}", train)
    folder = folder or factory.mktemp("federation")
    shutil.copytree(trained, folder, dirs_exist_ok=True)
    config = folder / "coordinator.toml"
    address = f'\naddress = "127.0.0.1:{free_port()}"'
    config.write_text(re.sub(r"\naddress = .*", address, config.read_text()))
    return folder


def write_party(
    folder: Path, name: str, port: int, max_per_row: int = 100_000, more: str = ""
) -> None:
    """Write the configuration of a party."""
    address = free_port()
    text = PARTY.format(port=port, name=name, max_per_row=max_per_row, address=address)
    (folder / f"{name}.toml").write_text(text + more)


def fused_model(folder: Path) -> Model:
    """Assemble the model of all parties in one process from the state folders."""
    head = HeadStore(RunDir(folder / "main")).current
    manifest = head.manifest()
    parts = {
        name: load_parts(RunDir(folder / name), manifest["encoders"][name]["version"])
        for name in PARTIES
    }
    model = Model(
        {name: each.encoder for name, each in parts.items()},
        {name: each.full_threshold for name, each in parts.items()},
        task_from_dict(manifest),
        manifest["prior"],
        parts["bank"].net,
        build(LossConfig, manifest["loss"], "manifest"),
        0,
        privacy=parts["bank"].privacy,
        head_net=build(NetConfig, manifest["net"], "manifest"),
    )
    for name, each in parts.items():
        model.parties[name].load_state_dict(dict(each.weights))
    model.method.heads.load_state_dict(head.load_tensors(MODEL)[0])
    model.temperatures = manifest["temperatures"]
    load_decision_weights(model.method, manifest["decision_weights"])
    return model


def new_tables(folder: Path) -> dict[str, pd.DataFrame]:
    """Read the prediction tables."""
    return {name: pd.read_csv(folder / f"{name}-new.csv").set_index("customer") for name in PARTIES}


@dataclass
class Response:
    """A response of the HTTP endpoint."""

    status: int
    body: dict[str, Any]
    seconds: float
    headers: Mapping[str, str]

    @property
    def predictions(self) -> list[dict[str, Any]]:
        assert self.status == 200, self.body
        predictions: list[dict[str, Any]] = self.body["predictions"]
        return predictions


@dataclass
class Predicting:
    """The processes of a federation that predicts."""

    folder: Path
    max_per_row: int = 100_000
    running: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    port: int = 0
    """Port of the HTTP endpoint."""
    listen: int = 0

    def __enter__(self) -> "Predicting":
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.running.values():
            with suppress(OSError):
                process.kill()
            process.wait()

    def start(self, *parties: str) -> "Predicting":
        """Start the coordinator and parties; wait until they are available."""
        self.launch("coordinator")
        self.listen = int(self.event("main", "listening")["address"].rpartition(":")[2])
        self.port = int(self.event("main", "prediction_endpoint")["port"])
        for name in parties:
            self.start_party(name)
        for name in parties:
            self.event("main", "party_available", party=name)
        return self

    def start_party(self, name: str, *options: str) -> None:
        """Start a party."""
        write_party(self.folder, name, self.listen, self.max_per_row)
        self.launch(name, *options)

    def launch(self, name: str, *options: str, serve: bool = True) -> None:
        command = "coordinator" if name == "coordinator" else "party"
        mode = ["--serve"] if serve else []
        state = self.folder / ("main" if name == "coordinator" else name)
        (state / "log.jsonl").unlink(missing_ok=True)
        if name in self.running:
            self.running[name].wait(60)
        with (self.folder / f"{name}.err").open("wb") as errors:
            self.running[name] = subprocess.Popen(
                self.on_machine(
                    name, sys.executable, "-m", "xvfl", command, f"{name}.toml", *mode, *options
                ),
                cwd=self.folder,
                env=self.environment(name),
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )

    def on_machine(self, name: str, *command: str) -> list[str]:
        """Return the command that runs a command on a side's machine."""
        return list(command)

    def environment(self, name: str) -> dict[str, str]:
        """Return the variables of a side's process."""
        return ENVIRONMENT

    def event(self, state: str, kind: str, **values: object) -> dict[str, Any]:
        """Wait for an event in a log."""
        until, name = time.monotonic() + WAIT_S, "coordinator" if state == "main" else state
        while True:
            for each in read_log(self.folder / state):
                if each["event"] == kind and values.items() <= each.items():
                    return each
            errors = self.folder / f"{name}.err"
            assert self.running[name].poll() is None, errors.read_text()
            assert time.monotonic() < until, (kind, values, errors.read_text())
            time.sleep(0.05)

    def wait_available(self, name: str) -> None:
        """Wait until a party that left takes part again."""
        until, states = time.monotonic() + WAIT_S, ("party_available", "party_left_out")
        while True:
            log = read_log(self.folder / "main")
            own = [e["event"] for e in log if e.get("party") == name and e["event"] in states]
            if own[-1:] == ["party_available"]:
                return
            assert time.monotonic() < until, log
            time.sleep(0.1)

    def predict(self, ids: list[str], port: int = 0, **more: object) -> Response:
        """Send a request to the coordinator, or to the endpoint at another port."""
        data = json.dumps({"ids": ids, **more}).encode()
        return self.post(data, port)

    def post(self, data: bytes, port: int = 0, kind: str = "application/json") -> Response:
        url = f"http://127.0.0.1:{port or self.port}/predict"
        request = urllib.request.Request(url, data, {"Content-Type": kind})
        started = time.monotonic()
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                status, text, headers = response.status, response.read(), response.headers
        except urllib.error.HTTPError as error:
            status, text, headers = error.code, error.read(), error.headers
        return Response(status, json.loads(text), time.monotonic() - started, headers)

    def get(self, path: str, port: int = 0) -> tuple[int, str, Mapping[str, str]]:
        """Return status, text and headers of a GET."""
        url = f"http://127.0.0.1:{port or self.port}{path}"
        try:
            with urllib.request.urlopen(url, timeout=60) as response:
                return response.status, response.read().decode(), response.headers
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(), error.headers

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a process."""
        self.running[name].send_signal(number)

    def send_many(
        self, ids: Sequence[str], actions: Mapping[int, Callable[[], None]], threads: int = 8
    ) -> list[tuple[str, Response]]:
        """Send a request for each id; carry out an action before the request of a number."""

        def send(number: int) -> tuple[str, Response]:
            if number in actions:
                actions[number]()
            return ids[number], self.predict([ids[number]])

        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(send, range(len(ids))))


def held_by(folder: Path, *parties: str) -> list[str]:
    """Return the new ids that any of these parties holds."""
    tables = new_tables(folder)
    ids = pd.read_csv(folder / "new-ids.csv")["customer"].tolist()
    return [each for each in ids if any(each in tables[name].index for name in parties)]


def accuracy(folder: Path, predictions: Sequence[tuple[str, str]]) -> float:
    """Return the share of correct predictions."""
    truth = pd.read_csv(folder / "truth.csv").set_index("customer")["churned"]
    return float(np.mean([truth[each] == label for each, label in predictions]))


def local_accuracy(folder: Path, party: str, ids: Sequence[str]) -> float:
    """Return the accuracy of a party alone; rows that it does not hold get the prior."""
    table = {party: new_tables(folder)[party]}
    frame = fused_model(folder).predict(table, "local", party, ids=ids).frame()
    return accuracy(folder, list(zip(ids, frame["prediction"], strict=True)))


@dataclass(frozen=True)
class ReachableGroup:
    """Answers that were computed while the same parties were reachable."""

    parties: tuple[str, ...]
    n_answers: int
    accuracy: float
    alone: dict[str, float]
    """Accuracy of each of the parties alone, on the same rows."""


def by_reachable_parties(
    folder: Path, rows: Sequence[tuple[str, dict[str, Any]]]
) -> list[ReachableGroup]:
    """Group answers by the parties that were reachable; compare them with each of these alone."""
    groups: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    for each, row in rows:
        reachable = tuple(name for name in PARTIES if name not in row["unreachable"])
        groups.setdefault(reachable, []).append((each, row["prediction"]))
    return [
        ReachableGroup(
            parties,
            len(answers),
            accuracy(folder, answers),
            {name: local_accuracy(folder, name, [each for each, _ in answers]) for name in parties},
        )
        for parties, answers in groups.items()
    ]
