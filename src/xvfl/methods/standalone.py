"""Standalone: every party trains its own bottom and head on the rows it holds in full.

What each organization has without a federation; gaps are zero-filled at test.
Shapes: B rows, k parties, C classes.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from xvfl import maths
from xvfl.methods.base import Federation, Mode
from xvfl.primitives.rows import Rows


class Standalone:
    """One head per party, no exchange between them."""

    modes = frozenset[Mode](("local",))

    def __init__(self, heads: nn.ModuleList) -> None:
        """Take one head per party."""
        self.heads: nn.Module = heads
        self._each = heads

    def select_parties(self, parties: Sequence[int]) -> "Standalone":
        """Leave only the heads of the reachable parties (D7); goes with `Rows.select_parties`."""
        return Standalone(nn.ModuleList([self._each[i] for i in parties]))

    def loss(self, federation: Federation, rows: Rows) -> dict[str, Tensor]:
        """Sum the parties' own cross-entropies on the rows they hold in full."""
        E = federation.embed(rows, ["plain"], rows.full.unsqueeze(2))[:, :, 0]
        out = torch.stack([head(E[:, i]) for i, head in enumerate(self._each)], 1)
        own = (maths.cross_entropy(out, rows.y) * rows.full).sum(1)
        return {"own": (own * rows.weight).mean()}

    def logits(self, federation: Federation, rows: Rows, mode: Mode, party: int) -> Tensor:
        """Decide a batch by one party alone. (B, C)"""
        E = federation.embed(rows, ["plain"])[:, party, 0]
        out: Tensor = self._each[party](E)
        return out
