"""Measure how much features interact in a party's net.

Without interactions, an embedding is a sum of functions of single features, and the embeddings of
masked copies reveal columns to a coordinator that knows no row. For an additive net, f(S) + f(T) =
f(S ∪ T) + f(∅) for disjoint sets S and T of features. Two ways lead there: high learning rates,
after which no hidden unit is active, and weight decay, which shrinks the product of the hidden
layers faster than the linear skip.
Shapes: M members, G groups of N rows with the same split (S, T), d embedding width.
"""

import math

import torch
from torch import Tensor, nn

from xvfl.federation.party_worker import PartyWorker
from xvfl.primitives.random import named_generator

GROUPS, GROUP_ROWS = 8, 32
MAX_CHANGE = 0.02
"""Relative change of the weights after which interactions are measured again."""


class InteractionProbe:
    """Measures a party's net on rows of its table, which are chosen at random once.

    Parameters
    ----------
    worker
        The party's net, with its first weights, and rows: a table with at least two features.
    """

    def __init__(self, worker: PartyWorker) -> None:
        self._worker = worker
        members, device = len(worker.seeds), worker.table.device
        generator = named_generator("cpu", worker.seeds[0], worker.name, "interactions")
        count = GROUPS * GROUP_ROWS
        handles = torch.randint(len(worker.table), (count,), generator=generator)
        order = torch.rand(GROUPS, worker.net.layout.raw, generator=generator).argsort(1)
        split = (order < order.shape[1] // 2).repeat_interleave(GROUP_ROWS, 0)
        self._handles, self._split = handles.repeat(members).to(device), split.to(device)
        self._first_norms = self._norms()
        self.change = math.inf
        """Relative change of the weights since the last measurement."""

    @property
    def due(self) -> bool:
        """Whether the weights have changed enough to measure again."""
        return not self.change < MAX_CHANGE

    def measure_norms(self) -> float:
        """Return the norm of a layer's weights over its first norm; smallest of all layers."""
        return float((self._norms() / self._first_norms.clamp(min=1e-30)).min())

    @torch.no_grad()
    def _norms(self) -> Tensor:
        # Many biases are 0 at first.
        named = self._worker.net.bottom.named_parameters()
        return torch.stack([weight.norm() for name, weight in named if "bias" not in name])

    @torch.no_grad()
    def measure(self) -> float:
        """Return the share of interactions in the variance of embeddings; smallest of all members.

        It is the variance over rows of f(S) + f(T) − f(S ∪ T), over that of f(S) and f(T).
        """
        net, members = self._worker.net, len(self._worker.seeds)
        rows = self._worker.table.take(self._handles)
        x, split = net.encode(rows), self._split.repeat(members, 1)

        def variance(z: Tensor) -> Tensor:
            grouped = z.double().view(members, GROUPS, GROUP_ROWS, -1)
            return grouped.var(2, correction=0).sum((1, 2))

        S, T = (
            _unbounded(net.bottom, net.given(x, rows.observed & part)) for part in (split, ~split)
        )
        both = _unbounded(net.bottom, net.given(x, rows.observed))
        total = variance(S) + variance(T)
        self.change = 0.0
        # Without any variance, embeddings reveal nothing.
        return float(torch.where(total > 0, variance(S + T - both) / total, 1.0).min())


def _unbounded(bottom: nn.Module, x: Tensor) -> Tensor:
    """Apply a bottom without its final tanh, which everybody can invert."""
    if isinstance(bottom, nn.Sequential) and isinstance(bottom[-1], nn.Tanh):
        bottom = bottom[:-1]
    z: Tensor = bottom(x)
    return z


def flat_weights(net: nn.Module) -> Tensor:
    """Return a copy of all weights of a net. (n,)"""
    return torch.cat([weight.detach().flatten() for weight in net.parameters()])


def relative_change(before: Tensor, after: Tensor) -> float:
    """Return the distance of two weight vectors, over the length of the first."""
    return float((after - before).norm() / before.norm().clamp(min=1e-30))
