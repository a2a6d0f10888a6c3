"""LASER-VFL, and LASER with random masks.

P. Valdeira, S. Wang, Y. Chi. Vertical federated learning with missing features during training
and inference. 2024. Mean aggregation; each observed party i has a head g_i; for each subset size
s one uniformly drawn subset J ∋ i of the observed parties O adds
C(|O|−1, s−1)/s · ℓ(g_i(mean of E over J), y). Whole blocks are missing there, never parts: partial
rows are zero-filled. Our rival `laser+mask` trains it on randomly masked inputs.
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


class Laser:
    """Train on sampled subsets of parties; predict with any observed subset."""

    modes = frozenset[Mode](("local", "collaborative", "peers"))

    def __init__(self, heads: nn.ModuleList, masks: bool, seeds: Sequence[int]) -> None:
        """Take one head per party; `masks` trains on randomly masked inputs."""
        self.heads: nn.Module = heads
        self._each = heads
        self.masks = masks
        self._seeds = tuple(seeds)
        self._draws = CounterRNG.concat(
            [CounterRNG(seeds, "subsets", i) for i in range(len(heads))]
        )

    def select_parties(self, parties: Sequence[int]) -> "Laser":
        """Leave only the heads of the reachable parties (D7); goes with `Rows.select_parties`."""
        heads = nn.ModuleList([self._each[i] for i in parties])
        return Laser(heads, self.masks, self._seeds)

    def loss(self, federation: Federation, rows: Rows) -> dict[str, Tensor]:
        """Sum the sampled subset losses of every observed party."""
        view: View = "masked" if self.masks else "plain"
        E = federation.embed(rows, [view], rows.seen.unsqueeze(2))[:, :, 0]
        k = E.shape[1]
        drawn = self._draws.uniform(rows.step, k * len(rows), k, E.device).view(k, -1, k)
        subsets = nested_subsets(rows.seen, drawn.transpose(0, 1)).to(E.dtype)
        means = subsets.flatten(1, 2) @ E / subsets.sum(-1).clamp(min=1).view(len(rows), -1, 1)
        means = means.view(*subsets.shape[:3], -1)
        out = torch.stack([head(means[:, i]) for i, head in enumerate(self._each)], 1)
        weights = subset_weights(rows.seen).to(E.dtype).unsqueeze(1) * rows.seen.unsqueeze(2)
        total = (maths.cross_entropy(out, rows.y) * weights).sum((1, 2))
        return {"subsets": (total * rows.weight).mean()}

    def logits(self, federation: Federation, rows: Rows, mode: Mode, party: int) -> Tensor:
        """Decide a batch by one head alone, or by the mean over the members' heads. (B, C)"""
        E = federation.embed(rows, ["plain"])[:, :, 0]
        if mode == "local":
            alone: Tensor = self._each[party](E[:, party])
            return alone
        members = rows.seen if mode == "collaborative" else maths.others(rows.full, party)
        mean = maths.mean_over(E, members)
        shares = torch.stack([head(mean).softmax(-1) for head in self._each], 1)
        return maths.mean_over(shares, members).clamp(min=1e-12).log()


def nested_subsets(seen: Tensor, drawn: Tensor) -> Tensor:
    """Give, for each party and size s = 1…k, a uniform subset of the observed ones with the party.

    `drawn` (B, k, k), in [0, 1): the last numbers of a row and party order the parties. Sizes
    beyond the number observed repeat the whole observed set; their weight is 0. (B, k, k, k)
    """
    k = seen.shape[1]
    own = torch.eye(k, dtype=torch.bool, device=seen.device)
    order = drawn.masked_fill(~seen.unsqueeze(1), 2.0).masked_fill(own, -1.0)
    rank = order.argsort(-1).argsort(-1)
    sizes = torch.arange(1, k + 1, device=seen.device)
    return (rank.unsqueeze(2) < sizes.view(-1, 1)) & seen.view(-1, 1, 1, k)


def subset_weights(seen: Tensor) -> Tensor:
    """Weigh the subset of each size s by C(|O|−1, s−1)/s. (B, k)"""
    return _weights(seen.shape[1], seen.device)[seen.sum(1)]


@cache
def _weights(k: int, device: torch.device) -> Tensor:
    """Weigh each size by the number of parties observed, once for each device. (k + 1, k)"""
    table = [[math.comb(max(n - 1, 0), s - 1) / s for s in range(1, k + 1)] for n in range(k + 1)]
    return torch.tensor(table, dtype=torch.float64, device=device)
