"""Modules over several embeddings: bottoms of one party, heads over several parties."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn


class ParallelBottoms(nn.Module):
    """Several bottoms of one party; their embeddings are concatenated."""

    def __init__(self, bottoms: Sequence[nn.Module]) -> None:
        super().__init__()
        self.bottoms = nn.ModuleList(bottoms)

    def forward(self, x: Tensor) -> Tensor:
        """Embed rows with each bottom. (B, branches·d)"""
        return torch.cat([bottom(x) for bottom in self.bottoms], -1)


class ConcatHead(nn.Module):
    """A head over one block for each party; blocks of unavailable parties are zeros (D7)."""

    def __init__(self, head: nn.Module, parties: int, available: Sequence[int] | None = None):
        """Take a head over `parties` blocks and the indices of available parties (default: all)."""
        super().__init__()
        self.head = head
        self.parties = parties
        self.available = tuple(range(parties) if available is None else available)

    def select_parties(self, parties: Sequence[int]) -> "ConcatHead":
        """Return this head for a subset of its available parties; weights are shared."""
        return ConcatHead(self.head, self.parties, [self.available[i] for i in parties])

    def forward(self, x: Tensor) -> Tensor:
        """Compute logits from the available parties' blocks. (…, C)"""
        if len(self.available) < self.parties:
            blocks = x.chunk(len(self.available), -1)
            by_party = dict(zip(self.available, blocks, strict=True))
            empty = torch.zeros_like(blocks[0])
            x = torch.cat([by_party.get(i, empty) for i in range(self.parties)], -1)
        return cast(Tensor, self.head(x))


class AdaptedHead(nn.Module):
    """A head with one adapter per party, a layer that maps its embeddings to a common space.

    Without gradients, the parties' bottoms do not learn a common space. Adapters belong to the
    coordinator and are trained with the head.
    """

    def __init__(self, head: nn.Module, adapters: Sequence[nn.Module]) -> None:
        super().__init__()
        self.head = head
        self.adapters = nn.ModuleList(adapters)

    def select_parties(self, parties: Sequence[int]) -> "AdaptedHead":
        """Return this head for a subset of its parties; weights are shared."""
        return AdaptedHead(self.head, [self.adapters[i] for i in parties])

    def adapt(self, E: Tensor) -> Tensor:
        """Apply each party's adapter to its embeddings: (B, k, …, d) to (B, k, …, n).

        Embeddings of a smaller width than d are padded with zeros, which the adapter does not take.
        """
        adapted = [
            adapter(E[:, i, ..., : next(adapter.parameters()).shape[-1]])
            for i, adapter in enumerate(self.adapters)
        ]
        return torch.stack(adapted, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Compute logits from combined adapted embeddings. (…, C)"""
        return cast(Tensor, self.head(x))
