"""Cost and accuracy of a head on secret shares, beside plain heads on the same upload.

    python lab/benchmarks/secret_head.py [--rows 0] [--epochs 10] [--delay 0.025] [--steps 0]

Bank Marketing between two parties, with simulated missing features; both upload embeddings of 128
numbers. Three nodes run on this machine (`scripts/env secret`). Reported are the AUROC on test rows
of the default plain heads (mode collaborative), of the twin of the secret head in plain arithmetic,
and of the secret head; and of the nodes: seconds, CPU seconds and bytes of a step, the largest
memory, and seconds of a prediction. `--delay` is that of each direction between nodes;
`--steps N` stops after N steps and skips accuracy. Prints JSON.
"""

import argparse
import asyncio
import json
import re
import resource
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "secret")]

from tests.processes import free_port  # noqa: E402
from tests.secret.small_problem import Problem, first_state  # noqa: E402
from tests.secret.three_nodes import NAMES, ThreeNodes, combine  # noqa: E402
from xvfl.config import EncoderConfig, NetConfig, PrivacyConfig, TrainConfig  # noqa: E402
from xvfl.primitives.metrics import auroc  # noqa: E402
from xvfl_lab.datasets import prepare  # noqa: E402
from xvfl_lab.experiments.runner import test  # noqa: E402
from xvfl_lab.experiments.stacked_runs import RunConfig, StackedRuns, isolated  # noqa: E402
from xvfl_secret import plain  # noqa: E402

CPU = torch.device("cpu")
PARTS = ("train", "validation", "test")
RATE, MOMENTUM, BATCH, HIDDEN = 0.25, 0.875, 512, 32
Rows = dict[str, NDArray[np.int64]]


def upload(options: argparse.Namespace) -> tuple[Problem, Rows, dict[str, Any]]:
    """Train encoders and default plain heads; return embeddings, rows by part, and scores."""
    rate, seed, n_rows = options.rate, options.seed, options.rows
    task = prepare("bank")
    if n_rows:
        task = task.take(np.random.default_rng(seed).permutation(len(task))[:n_rows])
    config = RunConfig(
        "xvfl+",
        rate,
        seed,
        net=NetConfig(),
        train=TrainConfig(options.plain_epochs, optimizer="adamw", random_state=seed),
        weights="calibrated",
    )
    encoder = EncoderConfig(embedding_dim=128, epochs=options.encoder_epochs)
    with isolated(task, CPU):
        stack = StackedRuns(task, [config], CPU, PrivacyConfig("no_gradients"), encoder=encoder)
        stack.train()
        scores = test(stack)[0]
    views = {each.name: each.views.float().numpy() for each in stack.federation.workers}
    width = sum(each.shape[2] for each in views.values())
    first = first_state(width, len(views), HIDDEN, np.random.default_rng(seed))
    handles = np.repeat(np.arange(len(stack.all_rows.y))[:, None], len(views), 1)
    handles[~stack.all_rows.seen.numpy()] = -1
    y = stack.all_rows.y.numpy().astype(np.float64)
    places = {part: stack.places(part)[0].numpy() for part in PARTS}
    return Problem(views, handles, y, first, True), places, scores


def twin_scores(problem: Problem, rows: Rows, epochs: int, seed: int) -> dict[str, float]:
    """Train the twin on the training rows; return AUROC on validation and test rows."""
    training = Problem(
        problem.views, _only(problem.handles, rows["train"]), problem.y, problem.first, True
    )
    state = training.train(epochs, BATCH, RATE, MOMENTUM, seed)
    found = {}
    for part in ("validation", "test"):
        x, present, _ = problem.batch(rows[part])
        found[part] = score(plain.predict(x, present, state, True), problem.y[rows[part]])
    return found


def score(proba: NDArray[Any], y: NDArray[Any]) -> float:
    """Return the AUROC."""
    return auroc(np.concatenate([1 - proba, proba], 1), y.astype(np.int64))


def _only(handles: NDArray[Any], rows: NDArray[Any]) -> NDArray[Any]:
    kept = np.full_like(handles, -1)
    kept[rows] = handles[rows]
    return kept


class Delay:
    """Relays connections to a port, and delays both directions."""

    def __init__(self, port: int, target: int, delay: float) -> None:
        self._target, self._delay, self._tasks = target, delay, set[Any]()
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, daemon=True).start()
        serve = asyncio.start_server(self._relay, "localhost", port)
        asyncio.run_coroutine_threadsafe(serve, loop).result()

    async def _relay(self, reader: Any, writer: Any) -> None:
        try:
            other = await asyncio.open_connection("localhost", self._target)
        except OSError:
            writer.close()
            return
        pair = self._copy(reader, other[1]), self._copy(other[0], writer)
        await asyncio.gather(*pair, return_exceptions=True)

    async def _copy(self, reader: Any, writer: Any) -> None:
        loop = asyncio.get_running_loop()
        while data := await reader.read(2**18):
            loop.call_later(self._delay, writer.write, data)
        loop.call_later(self._delay, writer.close)


def run_nodes(
    folder: Path, problem: Problem, rows: Rows, epochs: int, seed: int, delay: float, steps: int
) -> dict[str, Any]:
    """Train and predict with three nodes; return cost, and AUROC unless `steps` limits them."""
    if steps:
        rows = {**rows, "train": rows["train"][: steps * BATCH]}
        epochs = 1
    nodes = ThreeNodes(folder)
    nodes.write_inputs(
        problem.views,
        problem.handles,
        problem.y,
        problem.first,
        part=part_of(len(problem.y), rows),
        epochs=epochs,
        batch_rows=BATCH,
        learning_rate=RATE,
        momentum=MOMENTUM,
        seed=seed,
        checkpoint_interval=50,
    )
    thousand = rows["test"][:1000]
    for name, asked in {"a1": thousand[:1], "a2": thousand[:1]}.items():
        nodes.request(name, asked)
    for name in ("b1", "b2"):
        nodes.request(name, thousand)
    if not steps:
        nodes.request("test", rows["test"])
    changes: dict[str, Any] = {}
    if delay:
        public = [free_port() for _ in NAMES]
        for port, target in zip(public, nodes.ports, strict=True):
            Delay(port, target, delay)
        changes["addresses"] = [f"localhost:{port}" for port in public]
    began = time.monotonic()
    try:
        nodes.run("--once", profile=True, **changes)
    finally:
        nodes.close()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    log = (folder / f"{NAMES[0]}.log").read_text()
    done = [re.findall(r"step (\d+) of \d+, ([\d.]+) s a step", log)[-1]]
    sent, (count, seconds) = re.findall(r"(\d+) bytes sent", log)[0], done[0]
    latency = dict(re.findall(r"answered (\w+): \d+ rows in ([\d.]+) s", log))
    of_step = re.findall(r"Link details: .*send actions (\d+)", log)[: int(count)]
    found = {
        "steps": int(count),
        "seconds_a_step": float(seconds),
        "bytes_a_step_and_node": int(sent) // int(count),
        "messages_a_step_and_node": float(np.median([int(each) for each in of_step])),
        "seconds_of_all": time.monotonic() - began,
        "cpu_seconds_of_all_nodes": used.ru_utime + used.ru_stime,
        "largest_memory_mb": used.ru_maxrss / 1024,
        "seconds_of_one_row": float(latency["a2"]),
        "seconds_of_1000_rows": float(latency["b2"]),
    }
    if not steps:
        shares = [np.load(nodes.state(rank) / "answers" / "test.npy") for rank in range(3)]
        found["auroc"] = score(combine(shares), problem.y[rows["test"]])
    return found


def part_of(n_rows: int, rows: Rows) -> NDArray[np.uint8]:
    """Return the part of each row, as the nodes' inputs have it."""
    part = np.full(n_rows, 3, np.uint8)
    for number, name in enumerate(PARTS):
        part[rows[name]] = number
    return part


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--encoder-epochs", type=int, default=60)
    parser.add_argument("--plain-epochs", type=int, default=60)
    parser.add_argument("--rows", type=int, default=0, help="random rows of the table; 0 = all")
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--steps", type=int, default=0)
    options = parser.parse_args()
    began = time.monotonic()
    if options.steps:
        problem, rows = random_problem(options.steps, options.seed)
        result: dict[str, Any] = {}
    else:
        problem, rows, scores = upload(options)
        result = {
            "plain": scores["collaborative"],
            "rows": {name: len(each) for name, each in rows.items()},
        }
        result["twin"] = twin_scores(problem, rows, options.epochs, options.seed)
        result["seconds_of_upload_and_plain_heads"] = time.monotonic() - began
        print(json.dumps(result), file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="secret-") as folder:
        result["nodes"] = run_nodes(
            Path(folder),
            problem,
            rows,
            options.epochs,
            options.seed,
            options.delay,
            options.steps,
        )
    print(json.dumps({**vars(options), **result}, indent=1))


def random_problem(steps: int, seed: int) -> tuple[Problem, Rows]:
    """Draw embeddings of the same shape, to time some steps alone."""
    n_rows, rng = steps * BATCH + 1000, np.random.default_rng(seed)
    views = {name: rng.uniform(-1, 1, (n_rows, 1, 128)) for name in ("bank", "shop")}
    handles = np.repeat(np.arange(n_rows)[:, None], 2, 1)
    problem = Problem(
        views, handles, rng.integers(0, 2, n_rows) * 1.0, first_state(256, 2, HIDDEN, rng), True
    )
    places = np.arange(n_rows)
    return problem, {"train": places[:-1000], "validation": places[:0], "test": places[-1000:]}


if __name__ == "__main__":
    main()
