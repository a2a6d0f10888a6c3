"""LASER-VFL, and LASER with random masks.

P. Valdeira, S. Wang, Y. Chi. Vertical federated learning with missing features during training
and inference. 2024. Mean aggregation; each observed party i has a head g_i; for each subset size
s one uniformly sampled subset J ∋ i of the observed parties O adds
C(|O|−1, s−1)/s · ℓ(g_i(mean of E over J), y). The paper has missing
blocks only: partial rows are zero-filled here. `laser+mask` trains LASER on randomly masked inputs.
Shapes: B rows, k parties, C classes.
"""

import math
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor, nn

from xvfl import maths
from xvfl.methods.base import Federation, Mode, View
from xvfl.primitives.random import CounterRNG
from xvfl.primitives.rows import Rows
from xvfl.primitives.task import CLASSIFICATION, Task


class Laser:
    """Train on sampled subsets of parties; predict with any observed subset."""

    modes = frozenset[Mode](("local", "collaborative", "peers"))

    def __init__(
        self,
        heads: nn.ModuleList,
        mask_inputs: bool,
        seeds: Sequence[int],
        task: Task = CLASSIFICATION,
    ) -> None:
        """Take one head per party; with `mask_inputs`, train on randomly masked inputs."""
        self.heads: nn.Module = heads
        self._heads = heads
        self.mask_inputs, self.task = mask_inputs, task
        self._seeds = tuple(seeds)
        self._rng = CounterRNG.concat([CounterRNG(seeds, "subsets", i) for i in range(len(heads))])

    def select_parties(self, parties: Sequence[int]) -> "Laser":
        """Return the method for a subset of the parties (D7)."""
        heads = nn.ModuleList([self._heads[i] for i in parties])
        return Laser(heads, self.mask_inputs, self._seeds, self.task)

    def loss(self, federation: Federation, rows: Rows) -> dict[str, Tensor]:
        """Sum the sampled subset losses of every observed party."""
        view: View = "masked" if self.mask_inputs else "plain"
        E = federation.embed(rows, [view], rows.seen.unsqueeze(2))[:, :, 0]
        k = E.shape[1]
        uniform = self._rng.uniform(rows.step, k * len(rows), k, E.device).view(k, -1, k)
        subsets = nested_subsets(rows.seen, uniform.transpose(0, 1)).to(E.dtype)
        means = subsets.flatten(1, 2) @ E / subsets.sum(-1).clamp(min=1).view(len(rows), -1, 1)
        means = means.view(*subsets.shape[:3], -1)
        out = torch.stack([head(means[:, i]) for i, head in enumerate(self._heads)], 1)
        weights = subset_weights(rows.seen).to(E.dtype).unsqueeze(1) * rows.seen.unsqueeze(2)
        total = (self.task.loss(out, rows.y) * weights).sum((1, 2))
        return {"subsets": (total * rows.weight).mean()}

    def logits(self, federation: Federation, rows: Rows, mode: Mode, party: int) -> Tensor:
        """Compute the output of one head, or that of the mean prediction of several. (B, C)"""
        E = federation.embed(rows, ["plain"])[:, :, 0]
        if mode == "local":
            logits: Tensor = self._heads[party](E[:, party])
            return logits
        members = rows.seen if mode == "collaborative" else maths.others(rows.full, party)
        mean = maths.mean_over(E, members)
        return self.task.mix(torch.stack([head(mean) for head in self._heads], 1), members)


def nested_subsets(seen: Tensor, uniform: Tensor) -> Tensor:
    """Sample, for each party and size s = 1…k, a subset of the observed parties that contains it.

    `uniform` (B, k, k), in [0, 1), orders the parties for each row and party. Sizes above the
    number of observed parties repeat the full set; their weight is 0. (B, k, k, k)
    """
    k = seen.shape[1]
    own = torch.eye(k, dtype=torch.bool, device=seen.device)
    order = uniform.masked_fill(~seen.unsqueeze(1), 2.0).masked_fill(own, -1.0)
    rank = order.argsort(-1).argsort(-1)
    sizes = torch.arange(1, k + 1, device=seen.device)
    return (rank.unsqueeze(2) < sizes.view(-1, 1)) & seen.view(-1, 1, 1, k)


def subset_weights(seen: Tensor) -> Tensor:
    """Return the weight C(|O|−1, s−1)/s of each subset size s. (B, k)"""
    return _weight_table(seen.shape[1], seen.device)[seen.sum(1)]


@cache
def _weight_table(k: int, device: torch.device) -> Tensor:
    """Return the weights by number of observed parties, cached by device. (k + 1, k)"""
    table = [[math.comb(max(n - 1, 0), s - 1) / s for s in range(1, k + 1)] for n in range(k + 1)]
    return torch.tensor(table, dtype=torch.float64, device=device)
