"""The federation in one process: parties called directly, the graph intact."""

from collections.abc import Sequence

import torch
from torch import Tensor

from xvfl.data.rows import Rows
from xvfl.federation.party import PartySide
from xvfl.methods.base import View


class Fused:
    """All parties in one process; `backward` is autograd's own."""

    def __init__(self, sides: Sequence[PartySide]) -> None:
        """Join the parties, in the order of the rows' columns."""
        self.sides = tuple(sides)

    def only(self, parties: Sequence[int]) -> "Fused":
        """Leave only the reachable parties (D7); goes with `Rows.only`."""
        return Fused([self.sides[i] for i in parties])

    def embed(self, rows: Rows, views: Sequence[View]) -> Tensor:
        """Embed a batch at every party, in each view. (B, k, v, d)"""
        embedded = [
            side.embed(rows.handles[:, i], views, rows.step) for i, side in enumerate(self.sides)
        ]
        return torch.stack(embedded, 1)

    def complete(self, cues: Tensor, whole: Tensor) -> Tensor:
        """Embed the batch just embedded, completed from each party's cue. (B, k, d)"""
        completed = [side.complete(cues[:, i], whole) for i, side in enumerate(self.sides)]
        return torch.stack(completed, 1)

    def backward(self, loss: Tensor) -> None:
        """Send the gradients of the loss, and of the parties' own objectives, to every net."""
        own = [side.objective for side in self.sides if side.objective is not None]
        torch.stack([loss, *own]).sum().backward()  # type: ignore[no-untyped-call]
