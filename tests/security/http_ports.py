"""Processes with HTTP ports, at `ulimit -n 1024`, and clients that never finish a request."""

import json
import random
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.processes import ENVIRONMENT, free_port
from xvfl.certs import create_authority

WAIT_S = 300.0
HELD = 1200
PER_PROCESS = 600
"""Sockets of an attacking process, which has the limit of 1024 descriptors itself."""
COORDINATOR = """\
listen = "127.0.0.1:{port}"
parties = ["bank", "shop"]
state_dir = "main{suffix}"
status_address = "127.0.0.1:{status}"
release_to = ["bank", "shop"]
[tls]
ca_certificate = "certs/ca.crt"
certificate = "certs/coordinator.crt"
private_key = "certs/coordinator.key"
[labels]
table = "labels.csv"
id_column = "customer"
column = "churned"
[train]
epochs = 1
device = "cpu"
[prediction]
ids = "ids.csv"
address = "127.0.0.1:{prediction}"
{tls}"""
PARTY = """\
coordinator = "localhost:{port}"
table = "{name}.csv"
id_column = "customer"
state_dir = "{name}{suffix}"
status_address = "127.0.0.1:{status}"
release_key = "main/release.pub"
[tls]
ca_certificate = "certs/ca.crt"
certificate = "certs/{name}.crt"
private_key = "certs/{name}.key"
[prediction]
table = "{name}.csv"
address = "127.0.0.1:{prediction}"
{tls}"""
TLS = 'certificate = "certs/coordinator.crt"\nprivate_key = "certs/coordinator.key"\n'
SLOW_HEADERS = """
import socket, ssl, sys, threading, time
port, count, ca = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
context = ssl.create_default_context(cafile=ca) if ca else None
if context:
    context.check_hostname = False
held, dripping = [], []

def drip():
    # A byte now and then, so that no connection is silent.
    while True:
        for one in list(dripping):
            try:
                one.send(b"a")
            except OSError:
                dripping.remove(one)
        time.sleep(0.2)

threading.Thread(target=drip, daemon=True).start()
for number in range(count):
    try:
        held.append(one := socket.create_connection(("127.0.0.1", port), timeout=5))
        # Over TLS, one of ten finishes the handshake; the others send a part of it.
        if context and number % 10:
            one.sendall(bytes([22, 3, 1, 2, 0]))
            continue
        if context:
            one = held[-1] = context.wrap_socket(one)
        one.sendall(b"GET / HTTP/1.1\\r\\nHost: localhost\\r\\nX-Slow: ")
        dripping.append(one)
    except TimeoutError:
        break  # The server accepts no more.
    except OSError:
        pass
print("held", flush=True)
sys.stdin.readline()
"""


@dataclass
class Port:
    """An HTTP port of a process."""

    number: int
    path: str
    body: Mapping[str, Any] | None = None
    ca: Path | None = None

    def request(self, **headers: str) -> int:
        """Send an honest request on a connection of its own; return its status.

        Names of further headers have underscores in place of hyphens.
        """
        url = f"http{'s' if self.ca else ''}://localhost:{self.number}{self.path}"
        data = None if self.body is None else json.dumps(self.body).encode()
        given = {} if data is None else {"Content-Type": "application/json"}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        context = ssl.create_default_context(cafile=str(self.ca)) if self.ca else None
        try:
            request = urllib.request.Request(url, data, given)
            with urllib.request.urlopen(request, timeout=30, context=context) as reply:
                return int(reply.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    @contextmanager
    def slow_headers(self, count: int = HELD) -> Iterator[None]:
        """Hold connections with half-sent headers."""
        given = (SLOW_HEADERS, str(self.number), str(PER_PROCESS), str(self.ca or ""))
        attackers = [
            subprocess.Popen(
                [sys.executable, "-c", *given],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(count // PER_PROCESS)
        ]
        try:
            for each in attackers:
                assert each.stdout is not None and each.stdout.readline() == "held\n"
            yield
        finally:
            for each in attackers:
                each.communicate("end\n")


@dataclass
class Commands:
    """Commands that run in a folder until the block ends."""

    folder: Path
    stack: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> "Commands":
        return self

    def __exit__(self, *error: object) -> None:
        self.stack.close()

    def start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        """Start a command with at most 1024 descriptors."""
        limited = ("sh", "-c", 'ulimit -n 1024 && exec "$@"', "-")
        process = subprocess.Popen(
            [*limited, sys.executable, "-m", "xvfl", *arguments],
            cwd=self.folder,
            env=ENVIRONMENT,
            stdout=subprocess.DEVNULL,
        )
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)
        return process

    def run(self, *arguments: str) -> None:
        """Run a command to its end."""
        assert self.start(*arguments).wait(WAIT_S) == 0, arguments


def wait_for(port: Port, process: "subprocess.Popen[bytes]") -> Port:
    """Wait until a port answers."""
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until:
        assert process.poll() is None, process.returncode
        try:
            socket.create_connection(("127.0.0.1", port.number), timeout=30).close()
            return port
        except OSError:
            time.sleep(0.1)
    raise AssertionError(port)


class Federation:
    """A federation of two parties, and the ports of its processes."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.ca = folder, folder / "certs" / "ca.crt"
        rng, ids = random.Random(0), [f"c{i:03}" for i in range(240)]
        values = {each: [rng.gauss(0, 1) for _ in range(4)] for each in ids}
        rows = ["customer,churned"] + [
            f"{each},{'yes' if values[each][0] + values[each][2] > 0 else 'no'}" for each in ids
        ]
        (folder / "labels.csv").write_text("\n".join(rows) + "\n")
        (folder / "ids.csv").write_text("customer\n" + "\n".join(ids) + "\n")
        for start, name in ((0, "bank"), (2, "shop")):
            rows = [f"customer,{name}_0,{name}_1"]
            rows += [f"{each},{values[each][start]},{values[each][start + 1]}" for each in ids]
            (folder / f"{name}.csv").write_text("\n".join(rows) + "\n")
        authority = create_authority(folder / "certs")
        authority.issue("coordinator", hosts=("localhost", "127.0.0.1"))
        for name in ("bank", "shop"):
            authority.issue(name)

    @cached_property
    def bundle(self) -> Path:
        """Train the federation by its commands and export a bundle of the party bank."""
        self.configure()
        with Commands(self.folder) as commands:
            processes = [commands.start("coordinator", "coordinator.toml")]
            processes += [
                commands.start("party", f"{name}.toml", "--once") for name in ("bank", "shop")
            ]
            for each in processes:
                assert each.wait(WAIT_S) == 0
            commands.run("export", "bank.toml", "--out", "bank.xvfl")
        return self.folder / "bank.xvfl"

    def configure(self, tls: bool = False, suffix: str = "") -> None:
        """Write configurations with new ports, and a suffix of the state folders."""
        port, more = free_port(), TLS if tls else ""
        self.status, self.prediction = dict[str, int](), dict[str, int]()
        for name in ("coordinator", "bank", "shop"):
            self.status[name], self.prediction[name] = free_port(), free_port()
            text = (COORDINATOR if name == "coordinator" else PARTY).format(
                name=name,
                suffix=suffix,
                port=port,
                status=self.status[name],
                prediction=self.prediction[name],
                tls=more,
            )
            (self.folder / f"{name}.toml").write_text(text)

    @contextmanager
    def predicting(self, tls: bool = False) -> Iterator[dict[str, Port]]:
        """Start all sides with --serve; return the ports for predictions, by name."""
        assert self.bundle.exists()
        self.configure(tls)
        ca = self.ca if tls else None
        ports = {
            name: Port(number, "/predict", {"ids": ["c001"]}, ca)
            for name, number in self.prediction.items()
        }
        with Commands(self.folder) as commands:
            for name in ("coordinator", "bank", "shop"):
                side = "coordinator" if name == "coordinator" else "party"
                process = commands.start(side, f"{name}.toml", "--serve")
                wait_for(ports[name], process)
            until = time.monotonic() + WAIT_S
            for port in ports.values():
                while port.request() != 200:
                    assert time.monotonic() < until, port.request()
                    time.sleep(0.2)
            yield ports

    @contextmanager
    def serving(self, *options: str, tls: bool = False) -> Iterator[Port]:
        """Start `xvfl serve` with a bundle of the party bank."""
        bundle, number = self.bundle, free_port()
        with Commands(self.folder) as commands:
            files = ("--tls-cert", "certs/coordinator.crt", "--tls-key", "certs/coordinator.key")
            more = (*options, *(files if tls else ()))
            process = commands.start("serve", bundle.name, "--port", str(number), *more)
            port = Port(number, "/predict", {"rows": [{"bank_0": 1.0}]}, self.ca if tls else None)
            yield wait_for(port, process)

    @contextmanager
    def status_of(self, name: str) -> Iterator[Port]:
        """Start a side that waits for the others; return its status port."""
        self.configure(suffix="-alone")
        side = "coordinator" if name == "coordinator" else "party"
        with Commands(self.folder) as commands:
            process = commands.start(side, f"{name}.toml")
            yield wait_for(Port(self.status[name], "/status"), process)

    @contextmanager
    def dashboard(self) -> Iterator[Port]:
        """Start `xvfl dashboard`."""
        number = free_port()
        with Commands(self.folder) as commands:
            process = commands.start("dashboard", ".", "--port", str(number))
            yield wait_for(Port(number, "/api/runs"), process)
