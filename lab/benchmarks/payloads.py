"""Bytes of a step and quality of the model by payload format.

    python lab/benchmarks/payloads.py [--data digits] [--rows N] [--seeds 0 1 2] [--epochs 10]

xvfl+ over the memory transport, half of the features missing; the same runs with each payload, int8
once more without error feedback. Bytes are those of all frames of training, both ways. `--data` is
`digits` (accuracy) or `bank` (XVFL_DATA; AUROC, for one class is rare); `--rows` takes so many rows
of `bank` to train on and as many to test on.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from xvfl.config import NetConfig, TrainConfig
from xvfl.federation.begin_run import RunTerms, begin_run
from xvfl.federation.endpoint import Endpoint, PartyRun
from xvfl.federation.party_worker import PartyWorker
from xvfl.federation.remote_party import RemoteParty
from xvfl.federation.run_settings import RunSettings
from xvfl.federation.split import SplitFederation
from xvfl.primitives.layout import any_image
from xvfl.training.loop import Trainer
from xvfl.training.threads import limit_threads
from xvfl.wire.in_process import InProcessTransport
from xvfl.wire.messages import Hello
from xvfl.wire.payload import Packer, Payload
from xvfl_lab.datasets import prepare
from xvfl_lab.datasets.digits import digits
from xvfl_lab.experiments.dispatch import subset
from xvfl_lab.experiments.runner import test
from xvfl_lab.experiments.stacked_runs import RunConfig, StackedRuns
from xvfl_lab.task import Task

NET = NetConfig(embedding_dim=64, hidden_dim=128, members=1)
MODES = ("local", "assisted", "collaborative")
DATA: dict[str, tuple[Callable[[], Task], str]] = {
    "digits": (digits, "accuracy"),
    "bank": (lambda: prepare("bank"), "auroc"),
}
"""Data sets and their metrics."""
RUNS: tuple[tuple[Payload, bool], ...] = (
    ("float32", True),
    ("bf16", True),
    ("fp16", True),
    ("int8", True),
    ("int8", False),
)


class Nowhere:
    """A checkpoint store that stores nothing."""

    def save(self, *given: Any) -> None:
        """Do nothing."""

    def newest(self, run: str, step: int) -> None:
        """Return None: there is no checkpoint."""


@dataclass(frozen=True)
class Line:
    """One run."""

    payload: Payload
    feedback: bool
    seed: int
    bytes_a_step: float
    loss: float
    """Of the last epoch."""
    measured: dict[str, float]
    """By mode."""


class Plain(Endpoint):
    """An endpoint without error feedback."""

    def _begin(self, message: Any) -> Any:
        ready = super()._begin(message)
        self._packer = Packer(self._packer.payload, feedback=False)
        return ready


def line_to(worker: PartyWorker, feedback: bool) -> InProcessTransport:
    """Connect a party through an endpoint in this process."""
    row_status = torch.zeros(len(worker.table), dtype=torch.uint8)
    hello = Hello(0, worker.name, False, len(worker.table), "", "")
    kind = Endpoint if feedback else Plain
    end = kind(hello, lambda settings, training: PartyRun(worker, row_status), Nowhere())  # type: ignore[arg-type]
    return InProcessTransport(hello, end.handle)


def run(task: Task, metric: str, payload: Payload, feedback: bool, seed: int, epochs: int) -> Line:
    """Train and test once."""
    train = TrainConfig(epochs=epochs, random_state=seed, patience=0, device="cpu")
    stack = StackedRuns(task, [RunConfig("xvfl+", 0.5, seed, net=NET, train=train, weights="last")])
    net, loss, train = stack.options.net, stack.options.loss, stack.options.train
    said = RunSettings("xvfl+", net, train, loss.reconstruction_weight, payload=payload)
    lines = {worker.name: line_to(worker, feedback) for worker in stack.federation.workers}
    terms = RunTerms("run", json.dumps(asdict(said)), payload=payload)
    peers = [RemoteParty(*each) for each in lines.items()]
    federation = SplitFederation(peers, 64)
    begin_run(federation, terms)
    for peer in peers:
        peer.packer = Packer(payload, feedback)
    trainer = Trainer(federation, stack.method, stack.rows("train"), train)
    before = sum(sum(line.traffic()) for line in lines.values())
    last = [each for each in trainer.run(lambda: 0.0) if each.kind == "epoch"][-1]
    federation.flush()
    sent = sum(sum(line.traffic()) for line in lines.values()) - before
    stack.federation = federation  # type: ignore[assignment]
    found = test(stack)[0]
    measured = {mode: found[mode][metric] for mode in MODES}
    steps = trainer.progress.step
    loss = sum(value for name, value in last.values.items() if name != "score")
    return Line(payload, feedback, seed, sent / steps, loss, measured)


def report(lines: list[Line]) -> str:
    """Format means and standard deviations over seeds as Markdown.

    The last column compares collaborative prediction with that of `float32`, seed by seed.
    """
    plain = {each.seed: each for each in lines if each.payload == "float32"}
    whole = statistics.mean(each.bytes_a_step for each in plain.values())
    rows = ["| payload | bytes a step | share | loss | " + " | ".join(MODES) + " | difference |"]
    rows.append("|---|" + "---:|" * (4 + len(MODES)))
    for payload, feedback in RUNS:
        mine = [each for each in lines if (each.payload, each.feedback) == (payload, feedback)]
        sent = statistics.mean(each.bytes_a_step for each in mine)
        cells = [f"{statistics.mean(each.loss for each in mine):.4f}"]
        cells += [_spread([each.measured[mode] for each in mine]) for mode in MODES]
        together = MODES[-1]
        pairs = [(each.measured[together], plain[each.seed].measured[together]) for each in mine]
        cells.append("" if payload == "float32" else _spread([a - b for a, b in pairs], "+"))
        name = f"`{payload}`" + ("" if feedback else ", no feedback")
        rows.append(f"| {name} | {sent:,.0f} | {sent / whole:.3f} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _spread(values: Sequence[float], sign: str = "") -> str:
    """Format mean and standard deviation in %."""
    points = [100 * value for value in values]
    spread = statistics.stdev(points) if len(points) > 1 else 0.0
    return f"{statistics.mean(points):{sign}.2f} ± {spread:.2f}"


def main() -> None:
    """Print the table, and write the runs as JSON with `--out`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", choices=DATA, default="digits")
    parser.add_argument("--rows", type=int, default=0)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    started = time.perf_counter()
    lines = []
    load, metric = DATA[options.data]
    task = subset(load(), options.rows, options.rows)
    with (
        limit_threads(any_image(task.layouts), torch.device("cpu")),
        torch.random.fork_rng(devices=[]),
    ):
        for seed in options.seeds:
            for payload, feedback in RUNS:
                lines.append(run(task, metric, payload, feedback, seed, options.epochs))
                print(lines[-1], f"{time.perf_counter() - started:.0f} s", file=sys.stderr)
    print(report(lines))
    seconds = time.perf_counter() - started
    about = f"seeds {options.seeds}, {options.epochs} epochs, {seconds:.0f} s"
    print(f"{options.data}: {metric} in %, {about}")
    if options.out is not None:
        options.out.write_text(json.dumps([asdict(each) for each in lines], indent=1) + "\n")


if __name__ == "__main__":
    main()
