"""One of the three nodes: connect to the others, train, answer requests."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from spu import libspu

from xvfl_secret.checkpoints import Checkpoints, common_step
from xvfl_secret.errors import LinkLost, SecretError
from xvfl_secret.inputs import ANY, Inputs, load
from xvfl_secret.program import Engine
from xvfl_secret.settings import MAX_BYTES, NodeSettings
from xvfl_secret.training import Predictor, compile_step, train
from xvfl_secret.tunnel import Tunnel

LOST = 75
"""Exit status if another node is gone."""
RETRY_MS = 500
GRACE_S = 2.0
"""How long a node that has finished still passes on replies to the others."""
INPUTS, TRAINING, REQUESTS, ANSWERS = "inputs", "training", "requests", "answers"
Report = Callable[[str], None]


def run_node(settings: NodeSettings, report: Report) -> None:
    """Train, from the last common checkpoint, and answer all requests."""
    folder = Path(settings.state_dir)
    inputs = Inputs(folder / INPUTS)
    checkpoints = Checkpoints(folder / TRAINING, inputs.fingerprint)
    requests = read_requests(folder / REQUESTS, len(inputs.handles))
    program = compile_step(inputs)
    with connected(settings, report) as (link, tunnel):
        facts = {"training": checkpoints.name, "requests": requests_digest(requests)}
        others = exchange(link, {**facts, "steps": checkpoints.steps()})
        check_same(settings, facts, others)
        first = common_step(each["steps"] for each in others)
        report(f"connected to the other nodes; continuing after step {first}")
        engine = Engine(link, settings.profile)
        train(engine, program, inputs, checkpoints, first, report)
        report(f"trained; {tunnel.bytes_sent} bytes sent, {tunnel.bytes_received} received")
        predictor = Predictor(engine, inputs)
        for name, rows in requests.items():
            began = time.monotonic()
            save_answer(folder / ANSWERS, name, predictor.predict(rows))
            report(f"answered {name}: {len(rows)} rows in {time.monotonic() - began:.2f} s")
        _part(link, tunnel)


@contextmanager
def connected(settings: NodeSettings, report: Report) -> Iterator[tuple[Any, Tunnel]]:
    """Connect to the other nodes; the process ends with status `LOST` if one of them goes."""
    folder = Path(tempfile.mkdtemp(prefix="xs"))
    try:
        with Tunnel(settings, folder) as tunnel:
            link = _connect(settings, tunnel)

            def lost(name: str) -> None:
                report(f"the connection to {name} is lost")
                shutil.rmtree(folder, ignore_errors=True)
                sys.stderr.flush()
                os._exit(LOST)

            tunnel.watch(lost)
            try:
                yield link, tunnel
            except RuntimeError as error:
                raise LinkLost(f"another node does not answer ({_first_line(error)})") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _part(link: Any, tunnel: Tunnel) -> None:
    """Wait until all nodes are done, and ignore connections that end meanwhile."""
    tunnel.watch(None)
    with suppress(RuntimeError):
        link.barrier()
        link.stop_link()
    time.sleep(GRACE_S)


def _connect(settings: NodeSettings, tunnel: Tunnel) -> Any:
    description = libspu.link.Desc()
    description.recv_timeout_ms = int(1000 * settings.timeout)
    description.connect_retry_interval_ms = RETRY_MS
    description.connect_retry_times = max(1, int(1000 * settings.wait / RETRY_MS))
    for rank, name in enumerate(settings.names):
        description.add_party(name, tunnel.socket(rank))
    try:
        return libspu.link.create_brpc(description, settings.rank)
    except RuntimeError as error:
        raise SecretError(
            f"the other nodes did not connect in {settings.wait:.0f} s; start all three, and check "
            "addresses and certificates"
        ) from error


def exchange(link: Any, facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Send facts to the other nodes; return those of all nodes, in their order."""
    found: list[dict[str, Any]] = []
    for text in link.all_gather(json.dumps(facts)):
        try:
            value = json.loads(text) if len(text) <= MAX_BYTES else None
        except (ValueError, RecursionError):
            value = None
        value = value if isinstance(value, dict) else {}
        steps = value.get("steps")
        if not isinstance(steps, list) or not all(type(each) is int for each in steps):
            raise SecretError("another node runs another version of xvfl-secret")
        found.append(value)
    return found


def check_same(
    settings: NodeSettings, facts: Mapping[str, str], others: list[dict[str, Any]]
) -> None:
    """Raise if another node has other inputs or requests."""
    for name, other in zip(settings.names, others, strict=True):
        for key, value in facts.items():
            if other.get(key) != value:
                what = "inputs" if key == "training" else "requests"
                raise SecretError(
                    f"{name} has other {what} than this node; open the same files at all nodes"
                )


def read_requests(folder: Path, n_rows: int) -> dict[str, NDArray[np.int64]]:
    """Read the rows of each request."""
    found = {}
    for path in sorted(folder.glob("*.npy")):
        rows = load(path, np.int32, (ANY,)).astype(np.int64)
        if rows.size and not 0 <= rows.min() <= rows.max() < n_rows:
            raise SecretError(f"{path}: expected rows from 0 to {n_rows - 1}")
        found[path.stem] = rows
    return found


def requests_digest(requests: Mapping[str, NDArray[np.int64]]) -> str:
    """Return the digest of names and rows."""
    digest = sha256()
    for name, rows in requests.items():
        digest.update(name.encode() + b"\0" + rows.tobytes())
    return digest.hexdigest()


def save_answer(folder: Path, name: str, share: NDArray[np.uint64]) -> None:
    """Write this node's share of the predictions of a request."""
    folder.mkdir(exist_ok=True)
    temporary = folder / f"{name}.new"
    with temporary.open("wb") as file:
        np.save(file, share, allow_pickle=False)
    temporary.rename(folder / f"{name}.npy")


def run_until_done(arguments: list[str], wait: float, report: Report) -> int:
    """Run a node in a process of its own, again each time another node is lost."""
    while True:
        status = subprocess.run(
            [sys.executable, "-m", "xvfl_secret.command", *arguments]
        ).returncode
        if status != LOST:
            return status
        report(f"waiting up to {wait:.0f} s for the other nodes")
        time.sleep(RETRY_MS / 1000)


def _first_line(error: Exception) -> str:
    return next((each.strip() for each in str(error).splitlines() if "[" in each), "")[:200]
