"""Embeddings side by side: several nets of one party, or several parties under one head."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn


class ParallelBottoms(nn.Module):
    """Several bottoms of one party, their embeddings side by side in one of branches·d."""

    def __init__(self, bottoms: Sequence[nn.Module]) -> None:
        super().__init__()
        self.bottoms = nn.ModuleList(bottoms)

    def forward(self, x: Tensor) -> Tensor:
        """Embed rows by each bottom. (B, branches·d)"""
        return torch.cat([bottom(x) for bottom in self.bottoms], -1)


class ConcatHead(nn.Module):
    """A head over one block for each party; a party that cannot be reached leaves zeros (D7)."""

    def __init__(self, head: nn.Module, parties: int, reachable: Sequence[int] | None = None):
        """Take a head over `parties` blocks, and whose blocks it is given (all of them)."""
        super().__init__()
        self.head = head
        self.parties = parties
        self.reachable = tuple(range(parties) if reachable is None else reachable)

    def select_parties(self, parties: Sequence[int]) -> "ConcatHead":
        """Leave only some of the blocks it is given; the head is the same one."""
        return ConcatHead(self.head, self.parties, [self.reachable[i] for i in parties])

    def forward(self, x: Tensor) -> Tensor:
        """Decide from the reachable parties' blocks. (…, C)"""
        if len(self.reachable) < self.parties:
            given = x.chunk(len(self.reachable), -1)
            each = dict(zip(self.reachable, given, strict=True))
            empty = torch.zeros_like(given[0])
            x = torch.cat([each.get(i, empty) for i in range(self.parties)], -1)
        return cast(Tensor, self.head(x))
