"""The federation in one process: parties called directly, the graph intact."""

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from xvfl.config import TrainConfig
from xvfl.federation.party import PartyWorker
from xvfl.methods.base import Method, View, Work
from xvfl.primitives.rows import Rows
from xvfl.training.optimizer import OptimizedNet, Update, advance, optimizer, trainable
from xvfl.training.precision import configure_precision

T = TypeVar("T")


class FusedFederation:
    """All parties in one process; `backward` is autograd's own."""

    def __init__(self, sides: Sequence[PartyWorker]) -> None:
        """Join the parties, in the order of the rows' columns."""
        self.sides = tuple(sides)

    @property
    def names(self) -> tuple[str, ...]:
        """The parties' names."""
        return tuple(side.name for side in self.sides)

    @property
    def holders(self) -> dict[str, OptimizedNet]:
        """The parties' nets with their optimisers, once training has begun."""
        return {side.name: side.holder for side in self.sides if side.holder is not None}

    def only(self, parties: Sequence[int]) -> "FusedFederation":
        """Leave only the reachable parties (D7); goes with `Rows.only`."""
        return FusedFederation([self.sides[i] for i in parties])

    def embed(self, rows: Rows, views: Sequence[View], wanted: Tensor | None = None) -> Tensor:
        """Embed a batch at every party, in each view. (B, k, v, d)"""
        handles, wants = rows.handles.T.contiguous(), self._each(wanted)
        each = [
            side.embed(handles[i], views, rows.step, wants[i]) for i, side in enumerate(self.sides)
        ]
        return torch.stack(each, 1)

    def complete(self, cues: Tensor, whole: Tensor, wanted: Tensor | None = None) -> Tensor:
        """Embed the batch just embedded, completed from each party's cue. (B, k, d)"""
        cue, wants = cues.unbind(1), self._each(wanted)
        each = [side.complete(cue[i], whole, wants[i]) for i, side in enumerate(self.sides)]
        return torch.stack(each, 1)

    def _each(self, wanted: Tensor | None) -> Sequence[Tensor | None]:
        """Give every party its part, nothing where all is wanted; a GPU is not asked for that."""
        if wanted is None or (wanted.device.type == "cpu" and bool(wanted.all())):
            return [None] * len(self.sides)
        return wanted.unbind(1)

    def backward(self, loss: Tensor) -> None:
        """Send the gradients of the loss, and of the parties' own objectives, to every net."""
        own = [side.objective for side in self.sides if side.objective is not None]
        sum(own, loss).backward()  # type: ignore[no-untyped-call]

    def begin(self, config: TrainConfig, heads: nn.Module) -> OptimizedNet:
        """Give all parties and the heads one optimizer; weights do not bear on each other in it."""
        for side in self.sides:
            configure_precision(side.net, config)
        nets = [*(side.net for side in self.sides), heads]
        self._optimiser = optimizer([w for net in nets for w in trainable(net)], config)
        for side in self.sides:
            side.holder = OptimizedNet(side.net, config, self._optimiser)
        return OptimizedNet(heads, config, self._optimiser)

    def train(self, on: bool) -> None:
        """Switch every party's net to training or to prediction."""
        for side in self.sides:
            if side.net.training != on:
                side.net.train(on)

    def update(self, update: Update) -> None:
        """Have every holder, the heads' too, move by the gradients of the last `backward`."""
        if update.kind not in ("keep", "best"):
            advance(self._optimiser, update)
        for holder in self.holders.values():
            holder.update(update)

    def attempt(self, method: Method, rows: Rows, work: Work[T], alone: int | None = None) -> T:
        """Do some work on a batch, with all_parties or with the one party that it takes."""
        if alone is None:
            return work(self, method, rows)
        return work(self.only([alone]), method.only([alone]), rows.only([alone]))
