"""The federation in one process: parties called directly, the graph intact."""

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from xvfl.config import TrainConfig
from xvfl.federation.party_worker import PartyWorker
from xvfl.methods.base import Method, View, Work
from xvfl.primitives.rows import Rows
from xvfl.training.optimizer import OptimizedNet, Update, advance, optimizer, trainable
from xvfl.training.precision import configure_precision

T = TypeVar("T")


class FusedFederation:
    """All parties in one process; `backward` is autograd's own."""

    def __init__(self, workers: Sequence[PartyWorker]) -> None:
        """Join the parties, in the order of the rows' columns."""
        self.workers = tuple(workers)

    @property
    def names(self) -> tuple[str, ...]:
        """The parties' names."""
        return tuple(worker.name for worker in self.workers)

    @property
    def optimized_nets(self) -> dict[str, OptimizedNet]:
        """The parties' nets with their optimisers, once training has begun."""
        return {
            worker.name: worker.optimized_net
            for worker in self.workers
            if worker.optimized_net is not None
        }

    def select_parties(self, parties: Sequence[int]) -> "FusedFederation":
        """Leave only the reachable parties (D7); goes with `Rows.select_parties`."""
        return FusedFederation([self.workers[i] for i in parties])

    def embed(self, rows: Rows, views: Sequence[View], wanted: Tensor | None = None) -> Tensor:
        """Embed a batch at every party, in each view. (B, k, v, d)"""
        handles, wants = rows.handles.T.contiguous(), self._each(wanted)
        each = [
            worker.embed(handles[i], views, rows.step, wants[i])
            for i, worker in enumerate(self.workers)
        ]
        return torch.stack(each, 1)

    def complete(self, cues: Tensor, whole: Tensor, wanted: Tensor | None = None) -> Tensor:
        """Embed the batch just embedded, completed from each party's cue. (B, k, d)"""
        cue, wants = cues.unbind(1), self._each(wanted)
        each = [worker.complete(cue[i], whole, wants[i]) for i, worker in enumerate(self.workers)]
        return torch.stack(each, 1)

    def _each(self, wanted: Tensor | None) -> Sequence[Tensor | None]:
        """Give every party its part, nothing where all is wanted; a GPU is not asked for that."""
        if wanted is None or (wanted.device.type == "cpu" and bool(wanted.all())):
            return [None] * len(self.workers)
        return wanted.unbind(1)

    def backward(self, loss: Tensor) -> None:
        """Send the gradients of the loss, and of the parties' own objectives, to every net."""
        own = [worker.objective for worker in self.workers if worker.objective is not None]
        sum(own, loss).backward()  # type: ignore[no-untyped-call]

    def begin(self, config: TrainConfig, heads: nn.Module) -> OptimizedNet:
        """Give all parties and the heads one optimizer; weights do not bear on each other in it."""
        for worker in self.workers:
            configure_precision(worker.net, config)
        nets = [*(worker.net for worker in self.workers), heads]
        self._optimiser = optimizer([w for net in nets for w in trainable(net)], config)
        for worker in self.workers:
            worker.optimized_net = OptimizedNet(worker.net, config, self._optimiser)
        return OptimizedNet(heads, config, self._optimiser)

    def train(self, on: bool) -> None:
        """Switch every party's net to training or to prediction."""
        for worker in self.workers:
            if worker.net.training != on:
                worker.net.train(on)

    def update(self, update: Update) -> None:
        """Have every holder, the heads' too, move by the gradients of the last `backward`."""
        if update.kind not in ("keep", "best"):
            advance(self._optimiser, update)
        for holder in self.optimized_nets.values():
            holder.update(update)

    def run_batch(self, method: Method, rows: Rows, work: Work[T], alone: int | None = None) -> T:
        """Do some work on a batch, with all_parties or with the one party that it takes."""
        if alone is None:
            return work(self, method, rows)
        return work(
            self.select_parties([alone]),
            method.select_parties([alone]),
            rows.select_parties([alone]),
        )
