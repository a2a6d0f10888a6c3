"""Predict in every mode, score validation rows, calibrate. Torch and numpy alone.

Shapes: N rows, k parties, C classes.
"""

from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import torch
from torch import Tensor

from xvfl import maths
from xvfl.errors import PartyError
from xvfl.methods.base import Federation, Method, Mode, require_mode
from xvfl.primitives.rows import Rows
from xvfl.training.protocols import ReachableFederation

BATCH = 2048
Temperatures = dict[str, float]
"""One temperature for each mode and party, as `key` names them."""


def key(mode: Mode, party: str) -> str:
    """Name a way to predict; collaborative prediction belongs to no one party."""
    return mode if mode == "collaborative" else f"{mode}/{party}"


@torch.no_grad()
def logits(
    method: Method,
    federation: ReachableFederation,
    rows: Rows,
    mode: Mode,
    party: int,
    device: torch.device | None = None,
) -> Tensor:
    """Decide rows in a mode, in batches; the answer comes to the CPU or to `device`. (N, C)"""
    require_mode(method, mode)
    federation.train(False)
    method.heads.eval()

    name, alone = federation.names[party], party if mode == "local" else None

    def work(federation: Federation, method: Method, rows: Rows) -> Tensor:
        if mode == "collaborative":
            return method.logits(federation, rows, mode, 0).float()
        if name not in federation.names:
            raise PartyError(f"party {name!r} is away; it cannot predict in mode {mode!r}")
        return method.logits(federation, rows, mode, federation.names.index(name)).float()

    parts = []
    places = torch.arange(len(rows), device=rows.y.device).view(rows.runs, -1)
    for index in torch.split(places, BATCH, 1):
        out = federation.run_batch(method, rows.take(index.flatten()), work, alone)
        parts.append(out.view(rows.runs, -1, out.shape[-1]).to(device or "cpu"))
    return torch.cat(parts, 1).flatten(0, 1)


def ways(method: Method, federation: ReachableFederation) -> Iterator[tuple[Mode, int]]:
    """List every way to predict: each mode, and each party where the mode is a party's."""
    for mode in ("local", "assisted", "collaborative", "peers"):
        if mode in method.modes:
            count = 1 if mode == "collaborative" else len(federation.names)
            for party in range(count):
                yield mode, party


def answerable(rows: Rows, mode: Mode, party: int) -> Tensor:
    """Say which rows a mode has an answer to: those that a party it asks saw. (N,)"""
    if mode == "collaborative":
        return rows.seen.any(1)
    return maths.others(rows.full, party).any(1) if mode == "peers" else rows.seen[:, party]


def score(method: Method, federation: ReachableFederation, rows: Rows) -> float:
    """Score validation rows: minus the mean log-loss over local and collaborative prediction.

    What a party that is away would say alone does not count.
    """
    losses = []
    for mode, party in ways(method, federation):
        asked = answerable(rows, mode, party).nonzero().flatten()
        if mode in ("assisted", "peers") or not len(asked):
            continue
        with suppress(PartyError):
            out = logits(method, federation, rows.take(asked), mode, party)
            losses.append(torch.nn.functional.cross_entropy(out, rows.y[asked].cpu()).item())
    return -float(np.mean(losses)) if losses else 0.0


def calibrate(method: Method, federation: ReachableFederation, rows: Rows) -> Temperatures:
    """Fit a temperature to every way to predict, on validation rows."""
    found = {}
    for mode, party in ways(method, federation):
        asked = answerable(rows, mode, party).nonzero().flatten()
        name = federation.names[party]
        if len(asked) >= 20:
            with suppress(PartyError):
                out = logits(method, federation, rows.take(asked), mode, party)
                found[key(mode, name)] = temperature(out, rows.y[asked].cpu())
    return found


def temperature(out: Tensor, y: Tensor) -> float:
    """Find the T that minimises the log-loss of softmax(logits / T): convex in 1/T."""
    low, high = 0.05, 20.0

    def loss(inverse: float) -> float:
        return torch.nn.functional.cross_entropy(out.double() * inverse, y).item()

    for _ in range(60):
        left, right = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, right) if loss(left) <= loss(right) else (left, high)
    return 2 / (low + high)
