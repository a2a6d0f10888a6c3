"""A small federation whose processes meet faults: a coordinator and the party `shop`, over TLS."""

import json
import multiprocessing
import os
import re
import resource
import shutil
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from prometheus_client.parser import text_string_to_metric_families

from tests.processes import free_port
from xvfl.certs import create_authority
from xvfl.model.run_dir import RunDir
from xvfl.service.config import load_coordinator_config, load_party_config
from xvfl.service.coordinator_service import CoordinatorService
from xvfl.service.party import open_party
from xvfl.service.party_inputs import PartyInputs
from xvfl.system.event_log import read_log
from xvfl.system.signals import StopRequest
from xvfl.wire.in_process import InProcessTransport

COORDINATOR, PARTY = "coordinator", "shop"
SIDES = {COORDINATOR: ("coordinator", "--serve"), PARTY: ("party",)}
"""The sides, and the arguments of `xvfl` that start them."""
WAIT_S = 120.0
N_ROWS = 300
CONFIG = {
    COORDINATOR: """\
listen = "127.0.0.1:{listen}"
parties = ["shop"]
state_dir = "coordinator"
revocation_list = "certs/ca.crl"
status_address = "127.0.0.1:{status_coordinator}"
[tls]
ca_certificate = "certs/ca.crt"
certificate = "certs/coordinator.crt"
private_key = "certs/coordinator.key"
[labels]
table = "labels.csv"
id_column = "customer"
column = "churned"
[timeouts]
join = 60.0
[net]
hidden_dim = 16
heads = 1
[train]
epochs = 2
batch_size = 32
device = "cpu"
[prediction]
ids = "labels.csv"
address = "127.0.0.1:{endpoint}"
deadline = 20.0
""",
    PARTY: """\
coordinator = "localhost:{listen}"
table = "shop.csv"
id_column = "customer"
state_dir = "shop"
revocation_list = "certs/ca.crl"
status_address = "127.0.0.1:{status_shop}"
reconnect_timeout = 60.0
[tls]
ca_certificate = "certs/ca.crt"
certificate = "certs/shop.crt"
private_key = "certs/shop.key"
[encoder]
epochs = 2
embedding_dim = 16
hidden_dim = 16
[prediction]
table = "shop.csv"
[prediction.limits]
max_per_row = 1
""",
}
PROCESSES = multiprocessing.get_context("forkserver")
# The processes are forked from one that has imported what they need, which takes seconds.
PROCESSES.set_forkserver_preload(
    [
        "xvfl.service.coordinator",
        "xvfl.service.prediction.coordinator_process",
        "xvfl.service.party",
        "tests.service.fault_processes",
    ]
)
Patch = Callable[[], object]


def write_files(folder: Path) -> None:
    """Write tables, certificates and configurations."""
    rng = np.random.default_rng(5)
    ids = [f"c{i:03}" for i in range(N_ROWS)]
    x = rng.normal(size=(N_ROWS, 3))
    churned = np.where(x.sum(1) > 0, "yes", "no")
    pd.DataFrame({"customer": ids, "churned": churned}).to_csv(folder / "labels.csv", index=False)
    columns = dict(zip(("spent", "visits", "age"), x.T, strict=True))
    pd.DataFrame({"customer": ids, **columns}).to_csv(folder / "shop.csv", index=False)
    authority = create_authority(folder / "certs")
    authority.issue(COORDINATOR, hosts=("localhost", "127.0.0.1"))
    authority.issue(PARTY)
    write_configurations(folder)


def write_configurations(folder: Path) -> dict[str, int]:
    """Write the configurations, with free ports; return these."""
    names = ("listen", "endpoint", "status_coordinator", "status_shop")
    ports = {name: free_port() for name in names}
    for name, text in CONFIG.items():
        (folder / f"{name}.toml").write_text(text.format(**ports))
    return ports


def train(folder: Path) -> None:
    """Train a head with both sides in this process."""
    config = load_party_config(folder / f"{PARTY}.toml")
    service = CoordinatorService(load_coordinator_config(folder / "coordinator.toml"), show=False)
    inputs = PartyInputs.load(PARTY, config, RunDir(config.state_dir).create())
    endpoint = open_party(inputs, lambda event: None).endpoint
    service.connect({PARTY: InProcessTransport(endpoint.hello, endpoint.handle)})
    assert service.run(StopRequest()).evaluation is not None


class Faulty:
    """The processes of a federation in a folder; those that run at the end are killed."""

    def __init__(self, folder: Path, trained: Path | None = None) -> None:
        """Copy a trained federation, or write the files of a new one."""
        self.folder = folder
        if trained is None:
            write_files(folder)
        else:
            shutil.copytree(trained, folder, dirs_exist_ok=True)
        self.ports = write_configurations(folder)
        self.running: dict[str, ForkServerProcess] = {}

    def close(self) -> None:
        """Kill what runs."""
        for each in self.running.values():
            each.kill()
            each.join()

    def change(self, name: str, old: str, new: str) -> None:
        """Replace a text in a configuration."""
        path = self.folder / f"{name}.toml"
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new, 1))

    def start(self, name: str, *arguments: str, patch: Patch = int) -> None:
        """Start a side; `patch` is called in its process first."""
        given = arguments or SIDES[name]
        line = (given[0], f"{name}.toml", *given[1:])
        process = PROCESSES.Process(target=run_xvfl, args=(self.folder, name, line, patch))
        process.start()
        self.running[name] = process

    def end(self, name: str) -> int:
        """Wait until a process has ended; return its exit code."""
        self.running[name].join(WAIT_S)
        code = self.running[name].exitcode
        assert code is not None, f"{name} has not ended"
        return code

    def send(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a process."""
        pid = self.running[name].pid
        assert pid is not None
        os.kill(pid, number)

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the log of a side."""
        return read_log(self.folder / name)

    def wait(self, name: str, kind: str, **values: object) -> dict[str, Any]:
        """Wait for an event in the log of a side that runs."""
        wanted = {"event": kind, **values}.items()
        return self.until(
            name, lambda: next((e for e in self.events(name) if wanted <= e.items()), None), kind
        )

    def until(self, name: str, look: Callable[[], Any], what: str) -> Any:
        """Wait until a side that runs shows something; return it."""
        end = time.monotonic() + WAIT_S
        while not (found := look()):
            assert self.running[name].is_alive(), (name, what, self.errors(name))
            assert time.monotonic() < end, (name, what, self.events(name)[-5:])
            time.sleep(0.05)
        return found

    def errors(self, name: str) -> str:
        """Return what a process wrote to standard error."""
        return (self.folder / f"{name}.err").read_text()

    def get(self, name: str, page: str) -> tuple[int, str]:
        """Return status and text of a page of a side's status address."""
        port = self.ports[f"status_{name}"]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{page}", timeout=60) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metrics(self, name: str) -> dict[str, float]:
        """Return the values of a side's metrics by name and labels."""
        families = text_string_to_metric_families(self.get(name, "/metrics")[1])
        found = {}
        for sample in (sample for family in families for sample in family.samples):
            labels = ",".join(f'{key}="{value}"' for key, value in sample.labels.items())
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
        return found

    def serve(self, patch: Patch = int) -> None:
        """Start both sides of a trained federation; return when they predict."""
        self.start(COORDINATOR)
        self.wait(COORDINATOR, "listening")
        self.start(PARTY, patch=patch)
        self.wait(COORDINATOR, "party_available")

    def predict(self, ids: list[str]) -> int:
        """Request predictions of ids at the coordinator; return the status."""
        data = json.dumps({"ids": ids}).encode()
        url = f"http://127.0.0.1:{self.ports['endpoint']}/predict"
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return int(reply.status)
        except urllib.error.HTTPError as error:
            return error.code

    def plain(self, text: str) -> str:
        """Return a text of a log without what differs from run to run."""
        text = text.replace(f"{self.folder}/", "").replace(str(self.folder), ".")
        for pattern, put in (
            (r"127\.0\.0\.1:\d+|localhost:\d+", "HOST:PORT"),
            (r"; valid: .*|\? valid: .*", "; valid: …"),
            (r"\('127\.0\.0\.1', \d+\)", "HOST:PORT"),
            (r"\b[0-9a-f]{32,40}\b", "SERIAL"),
            (r"\b[\d,.]+ s\b", "… s"),
            (r"(HOST:PORT broke) \(.*?\)+", r"\1"),
            (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?[\w+:]*", "TIME"),
        ):
            text = re.sub(pattern, put, text)
        return " ".join(text.split())


@contextmanager
def federation(folder: Path, trained: Path | None = None) -> Iterator[Faulty]:
    """Yield a federation whose processes do not run yet."""
    made = Faulty(folder, trained)
    try:
        yield made
    finally:
        made.close()


def run_xvfl(folder: Path, name: str, line: tuple[str, ...], patch: Patch) -> None:
    """Run a command line in a folder; standard error is a file there."""
    import torch

    from xvfl.cli.main import main

    os.chdir(folder)
    with (folder / f"{name}.err").open("w") as errors:
        os.dup2(errors.fileno(), 1)
        os.dup2(errors.fileno(), 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
    torch.set_num_threads(1)
    sys.argv = ["xvfl", *line]
    patch()
    main()


def limit_files(size: int) -> None:
    """Let no file of this process grow beyond a size, as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
