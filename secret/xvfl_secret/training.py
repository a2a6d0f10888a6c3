"""Train the head on shares, and predict rows."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xvfl_secret import head
from xvfl_secret.checkpoints import Checkpoints
from xvfl_secret.errors import SecretError
from xvfl_secret.inputs import Inputs
from xvfl_secret.program import Engine, compile_program
from xvfl_secret.shares import Share

PUBLIC = frozenset({"present"})
MAX_PREDICTED = 1024
"""Rows that are predicted at once."""
PROGRESS_S = 10.0


def batches(
    inputs: Inputs, first: int = 0
) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
    """Yield number, rows and chosen copies (B, k) of each step from `first`.

    The order is public, as are the copies. The last partial batch of an epoch is dropped.
    """
    task, rows = inputs.task, inputs.training_rows()
    size = batch_rows(inputs)
    per_epoch = len(rows) // size
    copies = np.array([each.shape[1] for each in inputs.views])
    for epoch in range(first // per_epoch, task.epochs):
        rng = np.random.default_rng([task.seed, epoch])
        order = rng.permutation(rows)
        for number in range(per_epoch):
            views = rng.integers(0, copies, (size, len(copies)))
            step = epoch * per_epoch + number
            if step >= first:
                yield step, order[number * size : (number + 1) * size], views


def batch_rows(inputs: Inputs) -> int:
    """Return the rows of a batch: at most those that there are."""
    n_rows = len(inputs.training_rows())
    if not n_rows:
        raise SecretError("no row has a label and is held by a party; check the ids")
    return min(inputs.task.batch_rows, n_rows)


def compile_step(inputs: Inputs) -> Any:
    """Compile a step of the training."""
    size, task = batch_rows(inputs), inputs.task
    shapes = dict(inputs.shapes(size))
    ordered = {name: shapes.pop(name) for name in ("x", "present")} | {"y": (size, 1)} | shapes
    function = partial(
        head.step,
        classification=task.classification,
        learning_rate=task.learning_rate,
        momentum=task.momentum,
    )
    return compile_program(function, ordered, PUBLIC, head.STATE)


def train(
    engine: Engine,
    program: Any,
    inputs: Inputs,
    checkpoints: Checkpoints,
    first: int,
    report: Callable[[str], None],
) -> None:
    """Train from a checkpoint after `first` steps to the end; the engine then has the head."""
    task = inputs.task
    state = checkpoints.load(first, inputs.state) if first else inputs.state
    for name, share in state.items():
        engine.set_share(name, share)
    total = len(inputs.training_rows()) // batch_rows(inputs) * task.epochs
    started = reported = time.monotonic()
    for step, rows, views in batches(inputs, first):
        engine.set_share("x", inputs.embeddings(rows, views))
        engine.set_public("present", inputs.presence(rows))
        engine.set_share("y", inputs.y[rows])
        engine.run(program)
        done = step + 1
        if done % task.checkpoint_interval == 0 or done == total:
            checkpoints.save(done, {name: engine.share(name) for name in head.STATE})
        now = time.monotonic()
        if now - reported >= PROGRESS_S or done == total:
            reported = now
            report(f"step {done} of {total}, {(now - started) / (done - first):.2f} s a step")


class Predictor:
    """Predicts rows with the head that the engine has; programs are compiled once for each size."""

    def __init__(self, engine: Engine, inputs: Inputs) -> None:
        self._engine, self._inputs = engine, inputs
        self._programs: dict[int, Any] = {}

    def predict(self, rows: NDArray[np.int64]) -> Share:
        """Return this node's share of the probabilities, or numbers. (B, 1, 2)"""
        found = [
            self._predict(rows[start : start + MAX_PREDICTED])
            for start in range(0, len(rows), MAX_PREDICTED)
        ]
        return np.concatenate(found) if found else np.zeros((0, 1, 2), np.uint64)

    def _predict(self, rows: NDArray[np.int64]) -> Share:
        size = 1 << (len(rows) - 1).bit_length()
        padded = np.concatenate([rows, np.repeat(rows[:1], size - len(rows))])
        self._engine.set_share("x", self._inputs.embeddings(padded))
        self._engine.set_public("present", self._inputs.presence(padded))
        self._engine.run(self._program(size))
        return self._engine.share("answer")[: len(rows)]

    def _program(self, size: int) -> Any:
        if size not in self._programs:
            shapes = self._inputs.shapes(size)
            used = {name: shapes[name] for name in ("x", "present", *head.NAMES)}
            function = partial(head.predict, classification=self._inputs.task.classification)
            self._programs[size] = compile_program(function, used, PUBLIC, ["answer"])
        return self._programs[size]
