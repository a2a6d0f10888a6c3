"""Three nodes with certificates and inputs, as processes of the environment with SPU."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from ssl import PEM_cert_to_DER_cert
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.processes import ROOT, free_port
from xvfl.certs import create_authority

NAMES = ("alpha", "beta", "gamma")
PROGRAM = ROOT / ".venv-secret" / "bin" / "xvfl-secret"
needs_spu = pytest.mark.skipif(
    not PROGRAM.is_file(), reason="needs SPU; `scripts/env secret` installs it into .venv-secret"
)
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
STATE = ("w", "p", "v", "c", "mw", "mp", "mv", "mc")
TIMEOUT_S = 600
Array = NDArray[Any]


def program(*arguments: object) -> list[str]:
    """Return the command line of `xvfl-secret`."""
    return [str(PROGRAM), *map(str, arguments)]


def run(*arguments: object) -> "subprocess.CompletedProcess[str]":
    """Run `xvfl-secret`."""
    return subprocess.run(
        program(*arguments), env=ENVIRONMENT, capture_output=True, text=True, check=False
    )


def split(folder: Path, arrays: Mapping[str, Array]) -> list[Path]:
    """Split arrays; return the folder of each node's shares."""
    given, out = folder / "given", folder / "split"
    given.mkdir(parents=True)
    for name, values in arrays.items():
        np.save(given / f"{name}.npy", values.astype(np.float32))
    done = run("split", given, out)
    assert done.returncode == 0, done.stderr
    return [out / str(rank) for rank in range(3)]


def combine(shares: Sequence[Array]) -> Array:
    """Recover numbers from three shares, in plain arithmetic; checks that they agree."""
    first, second, third = shares
    assert np.array_equal(first[..., 1], second[..., 0])
    assert np.array_equal(third[..., 1], first[..., 0])
    ring = (first[..., 0] + second[..., 0] + third[..., 0]).view(np.int64)
    return ring / 2.0**22


class ThreeNodes:
    """Nodes in folders; certificates of an authority of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.certs = folder, folder / "certs"
        self.authority = create_authority(self.certs)
        self.ports = [free_port() for _ in NAMES]
        for name in NAMES:
            self.authority.issue(name, ["localhost"])
        self.running: list[subprocess.Popen[str]] = []

    def pin(self, name: str) -> str:
        """Return the digest of a certificate."""
        pem = (self.certs / f"{name}.crt").read_text()
        return sha256(PEM_cert_to_DER_cert(pem)).hexdigest()

    def state(self, rank: int) -> Path:
        """Return the folder of a node."""
        return self.folder / NAMES[rank]

    def settings(self, rank: int, **changes: Any) -> Path:
        """Write the settings of a node."""
        path, name = self.folder / f"{NAMES[rank]}.json", NAMES[rank]
        content = {
            "rank": rank,
            "names": NAMES,
            "addresses": [f"localhost:{port}" for port in self.ports],
            "pins": [self.pin(each) for each in NAMES],
            "listen": f"localhost:{self.ports[rank]}",
            "ca_certificate": str(self.certs / "ca.crt"),
            "certificate": str(self.certs / f"{name}.crt"),
            "private_key": str(self.certs / f"{name}.key"),
            "state_dir": str(self.state(rank)),
            "wait": 300,
            **changes,
        }
        path.write_text(json.dumps(content))
        return path

    def write_inputs(
        self,
        views: Mapping[str, Array],
        handles: Array,
        y: Array,
        first: Mapping[str, Array],
        part: Array | None = None,
        **task: Any,
    ) -> None:
        """Split embeddings (n, 1 + c, d) by party, labels (N,) and weights between the nodes."""
        scratch = self.folder / "scratch"
        arrays = {"y": y.reshape(-1, 1), **{name: first[name] for name in ("p", "v", "c")}}
        shares, start = {"task": split(scratch / "task", arrays)}, 0
        for name, values in views.items():
            stop = start + values.shape[2]
            arrays = {"views": values, "w": first["w"][start:stop]}
            shares[f"party-{name}"], start = split(scratch / name, arrays), stop
        content = {
            "parties": list(views),
            "sessions": ["0" * 32] * len(views),
            "classification": True,
            "epochs": 1,
            "batch_rows": 16,
            "learning_rate": 0.5,
            "momentum": 0.875,
            "seed": 0,
            "checkpoint_interval": 10,
            **task,
        }
        for rank in range(3):
            inputs = self.state(rank) / "inputs"
            inputs.mkdir(parents=True)
            for name, folders in shares.items():
                folders[rank].rename(inputs / name)
            np.save(inputs / "task" / "handles.npy", handles.astype(np.int32))
            parts = np.zeros(len(handles)) if part is None else part
            np.save(inputs / "task" / "part.npy", parts.astype(np.uint8))
            (inputs / "task" / "task.json").write_text(json.dumps(content))
            for name, values in views.items():
                np.save(inputs / f"party-{name}" / "observed.npy", np.ones(len(values), np.uint8))
                about = {"session": "0" * 32, "digest": name}
                (inputs / f"party-{name}" / "about.json").write_text(json.dumps(about))

    def request(self, name: str, rows: Array) -> None:
        """Request predictions of rows of all nodes."""
        for rank in range(3):
            folder = self.state(rank) / "requests"
            folder.mkdir(exist_ok=True)
            np.save(folder / f"{name}.npy", rows.astype(np.int32))

    def start(self, rank: int, *arguments: str, **changes: Any) -> "subprocess.Popen[str]":
        """Start a node."""
        command = program("node", self.settings(rank, **changes), *arguments)
        with (self.folder / f"{NAMES[rank]}.log").open("a") as log:
            node = subprocess.Popen(
                command,
                env=ENVIRONMENT,
                stderr=log,
                stdout=log,
                text=True,
                start_new_session=True,
            )
        self.running.append(node)
        return node

    def run(self, *arguments: str, **changes: Any) -> None:
        """Run all nodes to their successful end."""
        nodes = [self.start(rank, *arguments, **changes) for rank in range(3)]
        for node in nodes:
            assert node.wait(TIMEOUT_S) == 0, self.logs()

    def kill(self, node: "subprocess.Popen[str]") -> None:
        """Kill a node with the process that runs it, at once."""
        with suppress(ProcessLookupError):
            os.killpg(node.pid, signal.SIGKILL)
        node.wait()

    def logs(self) -> str:
        """Return the logs of all nodes."""
        return "\n".join((self.folder / f"{name}.log").read_text() for name in NAMES)

    def wait_for(self, rank: int, text: str) -> None:
        """Wait until the log of a node has a text."""
        path = self.folder / f"{NAMES[rank]}.log"
        for _ in range(10 * TIMEOUT_S):
            if path.exists() and text in path.read_text():
                return
            time.sleep(0.1)
        raise AssertionError(f"{text!r} is not in:\n{self.logs()}")

    def wait_for_folder(self, rank: int, pattern: str) -> list[Path]:
        """Wait until a node has a folder, and return it."""
        for _ in range(10 * TIMEOUT_S):
            if found := list(self.state(rank).glob(pattern)):
                return found
            time.sleep(0.1)
        raise AssertionError(f"no {pattern}:\n{self.logs()}")

    def head(self, step: int) -> list[dict[str, Array]]:
        """Return each node's shares of weights and momentum after a step."""
        found = []
        for rank in range(3):
            (folder,) = (self.state(rank) / "training").iterdir()
            found.append({name: np.load(folder / str(step) / f"{name}.npy") for name in STATE})
        return found

    def weights(self, step: int) -> dict[str, Array]:
        """Return weights and momentum after a step."""
        shares = self.head(step)
        return {name: combine([each[name] for each in shares]) for name in STATE}

    def close(self) -> None:
        """Kill what still runs."""
        for node in self.running:
            if node.poll() is None:
                self.kill(node)
