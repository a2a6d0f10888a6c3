"""Predict in every mode, score validation rows, fit temperatures. Needs torch and numpy only.

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
"""One temperature for each mode and party, by `temperature_key`."""


def temperature_key(mode: Mode, party: str) -> str:
    """Return the key of a mode and party; collaborative prediction has no party."""
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
    """Compute the logits of rows in a mode, in batches; on the CPU, or on `device`. (N, C)"""
    require_mode(method, mode)
    federation.train(False)
    method.heads.eval()

    name, only_party = federation.names[party], party if mode == "local" else None

    def predict(federation: Federation, method: Method, rows: Rows) -> Tensor:
        if mode == "collaborative":
            return method.logits(federation, rows, mode, 0).float()
        if name not in federation.names:
            raise PartyError(f"party {name!r} is offline; it cannot predict in mode {mode!r}")
        return method.logits(federation, rows, mode, federation.names.index(name)).float()

    parts = []
    places = torch.arange(len(rows), device=rows.y.device).view(rows.runs, -1)
    for index in torch.split(places, BATCH, 1):
        out = federation.run_batch(method, rows.take(index.flatten()), predict, only_party)
        parts.append(out.view(rows.runs, -1, out.shape[-1]).to(device or "cpu"))
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


def score(method: Method, federation: ReachableFederation, rows: Rows) -> float:
    """Score validation rows: minus the mean log-loss over local and collaborative prediction.

    The local prediction of a party that is offline does not count.
    """
    losses = []
    for mode, party in mode_party_pairs(method, federation):
        index = predictable_rows(rows, mode, party).nonzero().flatten()
        if mode in ("assisted", "peers") or not len(index):
            continue
        with suppress(PartyError):
            out = logits(method, federation, rows.take(index), mode, party)
            losses.append(torch.nn.functional.cross_entropy(out, rows.y[index].cpu()).item())
    return -float(np.mean(losses)) if losses else 0.0


def calibrate(method: Method, federation: ReachableFederation, rows: Rows) -> Temperatures:
    """Fit a temperature for every mode and party on validation rows."""
    temperatures = {}
    for mode, party in mode_party_pairs(method, federation):
        index = predictable_rows(rows, mode, party).nonzero().flatten()
        name = federation.names[party]
        if len(index) >= 20:
            with suppress(PartyError):
                out = logits(method, federation, rows.take(index), mode, party)
                temperatures[temperature_key(mode, name)] = fit_temperature(
                    out, rows.y[index].cpu()
                )
    return temperatures


def fit_temperature(out: Tensor, y: Tensor) -> float:
    """Minimize the log-loss of softmax(logits / T), which is convex in 1/T; return T."""
    low, high = 0.05, 20.0

    def loss(inverse: float) -> float:
        return torch.nn.functional.cross_entropy(out.double() * inverse, y).item()

    for _ in range(60):
        left, right = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, right) if loss(left) <= loss(right) else (left, high)
    return 2 / (low + high)
