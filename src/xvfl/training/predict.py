"""Predict in every mode, and score validation rows. Needs torch and numpy only.

Shapes: N rows, k parties, n decisions, C classes.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from xvfl import maths
from xvfl.methods.base import Federation, Method, Mode, mode_key, require_mode
from xvfl.methods.pooling import decisions, without_gaps
from xvfl.primitives.rows import Rows
from xvfl.primitives.task import CLASSIFICATION, Task
from xvfl.training.protocols import ReachableFederation

BATCH = 2048
BLOCK = 16 * BATCH
"""Rows of which the full ones are predicted apart; smaller blocks leave small batches of others."""
MAX_ROWS = 10_000
"""Validation rows whose losses decide: the best epoch, the weights of decisions, temperatures."""
SCORED: tuple[Mode, ...] = ("local", "collaborative")
"""The modes whose validation loss decides which epoch is the best."""
Predict = Callable[[Method, Federation, Rows, int], Tensor]
"""Predicts a batch by the party at an index."""


def logits(
    method: Method,
    federation: ReachableFederation,
    rows: Rows,
    mode: Mode,
    party: int,
    device: torch.device | None = None,
) -> Tensor:
    """Compute the logits of rows in a mode, in batches; on the CPU, or on `device`. (N, C)

    Rows that are full are predicted apart: without completion.
    """
    require_mode(method, mode)

    def predict(method: Method, federation: Federation, rows: Rows, party: int) -> Tensor:
        return method.logits(federation, rows, mode, party)

    plain = None if mode == "peers" or rows.runs > 1 else without_gaps(method)
    if plain is None or not len(rows):
        return _in_batches(predict, method, federation, rows, mode, party, device)
    full, parts = rows.full.all(1) if mode == "collaborative" else rows.full[:, party], []
    for index in torch.split(torch.arange(len(rows), device=rows.device), BLOCK):
        apart = [(index[full[index]], plain), (index[~full[index]], method)]
        found = [
            _in_batches(predict, used, federation, rows.take(at), mode, party, device)
            for at, used in apart
            if len(at)
        ]
        order = torch.cat([at for at, _ in apart]).argsort()
        parts.append(torch.cat(found)[order.to(found[0].device)])
    return torch.cat(parts)


def all_decisions(
    method: Method,
    federation: ReachableFederation,
    rows: Rows,
    mode: Mode,
    party: int,
    device: torch.device | None = None,
) -> Tensor:
    """Compute the decisions that a method pools in a mode (D9), in batches. (N, n, C)"""

    def predict(method: Method, federation: Federation, rows: Rows, party: int) -> Tensor:
        return decisions(method, federation, rows, mode, party)

    return _in_batches(predict, method, federation, rows, mode, party, device)


@torch.no_grad()
def _in_batches(
    predict: Predict,
    method: Method,
    federation: ReachableFederation,
    rows: Rows,
    mode: Mode,
    party: int,
    device: torch.device | None,
) -> Tensor:
    require_mode(method, mode)
    federation.train(False)
    method.heads.eval()

    name, only_party = federation.names[party], party if mode == "local" else None

    def predict_batch(federation: Federation, method: Method, rows: Rows) -> Tensor:
        if mode == "collaborative":
            return predict(method, federation, rows, 0).float()
        return predict(method, federation, rows, federation.names.index(name)).float()

    parts = []
    places = torch.arange(len(rows), device=rows.y.device).view(rows.runs, -1)
    for index in torch.split(places, BATCH, 1):
        out = federation.run_batch(method, rows.take(index.flatten()), predict_batch, only_party)
        parts.append(out.view(rows.runs, -1, *out.shape[1:]).to(device or "cpu"))
    return torch.cat(parts, 1).flatten(0, 1)


def mode_party_pairs(method: Method, federation: ReachableFederation) -> Iterator[tuple[Mode, int]]:
    """Yield the method's modes, each with every party; `collaborative` once."""
    for mode in ("local", "assisted", "collaborative", "peers"):
        if mode in method.modes:
            count = 1 if mode == "collaborative" else len(federation.names)
            for party in range(count):
                yield mode, party


def predictable_rows(rows: Rows, mode: Mode, party: int) -> Tensor:
    """Return which rows a mode can predict: those observed by a party that it uses. (N,)"""
    if mode == "collaborative":
        return rows.seen.any(1)
    return maths.others(rows.full, party).any(1) if mode == "peers" else rows.seen[:, party]


def some_rows(rows: Rows) -> Rows:
    """Select at most `MAX_ROWS` validation rows of each run, evenly spaced."""
    count = len(rows) // rows.runs
    if count <= MAX_ROWS:
        return rows
    places = torch.arange(len(rows), device=rows.device).view(rows.runs, -1)
    return replace(rows.take(places[:, :: -(-count // MAX_ROWS)].flatten()), runs=rows.runs)


def mode_losses(
    method: Method,
    federation: ReachableFederation,
    rows: Rows,
    task: Task = CLASSIFICATION,
    modes: Collection[Mode] = SCORED,
) -> dict[str, float]:
    """Compute the mean loss of at most `MAX_ROWS` validation rows, by `mode_key`."""
    rows, losses = some_rows(rows), {}
    for mode, party in mode_party_pairs(method, federation):
        index = predictable_rows(rows, mode, party).nonzero().flatten()
        if mode not in modes or not len(index):
            continue
        out = logits(method, federation, rows.take(index), mode, party)
        key = mode_key(mode, federation.names[party])
        losses[key] = float(task.mean_loss(out, rows.y[index].cpu()))
    return losses


def mean_score(losses: Mapping[str, float]) -> float:
    """Score an epoch: minus the mean of its `mode_losses`."""
    return -float(np.mean(list(losses.values()))) if losses else 0.0


def score(
    method: Method, federation: ReachableFederation, rows: Rows, task: Task = CLASSIFICATION
) -> float:
    """Score validation rows: minus the mean loss over local and collaborative prediction."""
    return mean_score(mode_losses(method, federation, rows, task))
