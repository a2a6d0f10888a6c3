"""The federation in one process: parties called directly, the graph intact."""

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from xvfl.config import TrainConfig
from xvfl.data.rows import Rows
from xvfl.federation.holder import Holder, Update
from xvfl.federation.party import PartySide
from xvfl.federation.precision import quicken
from xvfl.methods.base import Method, View, Work

T = TypeVar("T")


class Fused:
    """All parties in one process; `backward` is autograd's own."""

    def __init__(self, sides: Sequence[PartySide]) -> None:
        """Join the parties, in the order of the rows' columns."""
        self.sides = tuple(sides)

    @property
    def names(self) -> tuple[str, ...]:
        """The parties' names."""
        return tuple(side.name for side in self.sides)

    @property
    def holders(self) -> dict[str, Holder]:
        """The parties' nets with their optimisers, once training has begun."""
        return {side.name: side.holder for side in self.sides if side.holder is not None}

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

    def begin(self, config: TrainConfig) -> None:
        """Give every party its optimiser."""
        for side in self.sides:
            quicken(side.net, config)
            side.holder = Holder(side.net, config)

    def train(self, on: bool) -> None:
        """Switch every party's net to training or to prediction."""
        for side in self.sides:
            side.net.train(on)

    def update(self, update: Update) -> None:
        """Have every party update its weights from the gradients of the last `backward`."""
        for holder in self.holders.values():
            holder.update(update)

    def attempt(self, method: Method, rows: Rows, work: Work[T], alone: int | None = None) -> T:
        """Do some work on a batch: here every party is always there."""
        return work(self, method, rows)
