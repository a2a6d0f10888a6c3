"""Standalone: every party trains its own bottom and head on its full rows.

The baseline without a federation; missing features are zero-filled in prediction.
Shapes: B rows, k parties, C classes.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from xvfl.methods.base import Federation, Mode
from xvfl.primitives.rows import Rows
from xvfl.primitives.task import CLASSIFICATION, Task


class Standalone:
    """One head per party, no exchange between them."""

    modes = frozenset[Mode](("local",))

    def __init__(self, heads: nn.ModuleList, task: Task = CLASSIFICATION) -> None:
        """Take one head per party."""
        self.heads: nn.Module = heads
        self.task = task
        self._heads = heads

    def select_parties(self, parties: Sequence[int]) -> "Standalone":
        """Return the method for a subset of the parties (D7)."""
        return Standalone(nn.ModuleList([self._heads[i] for i in parties]), self.task)

    def loss(self, federation: Federation, rows: Rows) -> dict[str, Tensor]:
        """Compute the sum of the parties' losses on their full rows."""
        E = federation.embed(rows, ["plain"], rows.full.unsqueeze(2))[:, :, 0]
        out = torch.stack([head(E[:, i]) for i, head in enumerate(self._heads)], 1)
        own = (self.task.loss(out, rows.y) * rows.full).sum(1)
        return {"own": (own * rows.weight).mean()}

    def logits(self, federation: Federation, rows: Rows, mode: Mode, party: int) -> Tensor:
        """Compute the logits of one party. (B, C)"""
        E = federation.embed(rows, ["plain"])[:, party, 0]
        out: Tensor = self._heads[party](E)
        return out
