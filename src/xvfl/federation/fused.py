"""A federation in one process: parties are called directly, with one autograd graph."""

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from xvfl.config import TrainConfig
from xvfl.federation.party_worker import PartyWorker
from xvfl.methods.base import BatchFunction, Method, View
from xvfl.primitives.rows import Rows
from xvfl.training.optimizer import (
    OptimizedNet,
    WeightUpdate,
    apply_update,
    build_optimizer,
)
from xvfl.training.precision import configure_precision

T = TypeVar("T")


class FusedFederation:
    """All parties in one process; `backward` is autograd's own.

    Parameters
    ----------
    workers
        The parties, in the order of the rows' columns.
    width
        Least width of embeddings; narrower ones are padded with zeros.
    """

    def __init__(self, workers: Sequence[PartyWorker], width: int = 0) -> None:
        self.workers, self.width = tuple(workers), width

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parties."""
        return tuple(worker.name for worker in self.workers)

    @property
    def optimized_nets(self) -> dict[str, OptimizedNet]:
        """The parties' nets with their optimizers, once training has begun."""
        nets = {worker.name: worker.optimized_net for worker in self.workers}
        return {name: net for name, net in nets.items() if net is not None}

    def select_parties(self, parties: Sequence[int]) -> "FusedFederation":
        """Return the federation of a subset of the parties (D7); use with `Rows.select_parties`."""
        return FusedFederation([self.workers[i] for i in parties], self.width)

    def embed(self, rows: Rows, views: Sequence[View], needed: Tensor | None = None) -> Tensor:
        """Embed a batch at every party, in each view. (B, k, v, d)"""
        handles, masks = rows.handles.T.contiguous(), self._by_party(needed)
        each = [
            pad(worker.embed(handles[i], views, rows.step, masks[i]), self.width)
            for i, worker in enumerate(self.workers)
        ]
        return torch.stack(each, 1)

    def complete(
        self, cues: Tensor, replace_observed: Tensor, needed: Tensor | None = None
    ) -> Tensor:
        """Embed the last batch, completed from each party's cue. (B, k, d)"""
        cue, masks = cues.unbind(1), self._by_party(needed)
        each = [
            worker.complete(cue[i], replace_observed, masks[i])
            for i, worker in enumerate(self.workers)
        ]
        return torch.stack(each, 1)

    def _by_party(self, needed: Tensor | None) -> Sequence[Tensor | None]:
        """Split the mask by party; None where everything is needed (not checked on a GPU)."""
        if needed is None or (needed.device.type == "cpu" and bool(needed.all())):
            return [None] * len(self.workers)
        return needed.unbind(1)

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients of the loss plus the parties' own objectives."""
        own = [worker.objective for worker in self.workers if worker.objective is not None]
        sum(own, loss).backward()  # type: ignore[no-untyped-call]

    def begin(self, config: TrainConfig, heads: nn.Module) -> OptimizedNet:
        """Create one optimizer for all parties and the heads; it updates each weight separately."""
        for worker in self.workers:
            configure_precision(worker.net, config)
        self._optimizer = build_optimizer([*(each.net for each in self.workers), heads], config)
        for worker in self.workers:
            worker.optimized_net = OptimizedNet(worker.net, config, self._optimizer)
        return OptimizedNet(heads, config, self._optimizer)

    def train(self, on: bool) -> None:
        """Switch every party's net to training or evaluation mode."""
        for worker in self.workers:
            if worker.net.training != on:
                worker.net.train(on)

    def update(self, update: WeightUpdate) -> None:
        """Update all nets, the heads included, with the gradients of the last `backward`."""
        if update.kind not in ("save_best", "load_best"):
            apply_update(self._optimizer, update)
        for net in self.optimized_nets.values():
            net.update(update)

    def run_batch(
        self,
        method: Method,
        rows: Rows,
        function: BatchFunction[T],
        only_party: int | None = None,
    ) -> T:
        """Run a function on a batch, with all parties or with the one that it needs."""
        if only_party is None:
            return function(self, method, rows)
        only = [only_party]
        return function(
            self.select_parties(only), method.select_parties(only), rows.select_parties(only)
        )


def pad(E: Tensor, width: int) -> Tensor:
    """Append zeros to embeddings that are narrower than a width."""
    missing = width - E.shape[-1]
    return functional.pad(E, (0, missing)) if missing > 0 else E
