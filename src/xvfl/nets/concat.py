"""Concatenated embeddings: several bottoms of one party, or all parties under one head."""

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
