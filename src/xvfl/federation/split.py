"""A federation whose parties are remote: the autograd graph is split across the wire.

Each call sends a request to every party; the replies become a leaf tensor of the coordinator's
graph. `backward` computes the gradients of the leaves and visits the calls in reverse order. The
gradients of completed embeddings are sent to the parties, which reply with the gradients of the
cues; these continue into the embeddings. The gradients of embeddings and the weight update are sent
with the next `embed`, or with `flush`. A message has each row once, with the embeddings of all
members side by side; leaves, cues and gradients have this form. The method gets and gives the rows
of each member (`member_rows`). A fault of any party raises `PartyError`; `begin_run` then lets all
parties begin again.
Shapes: B rows, k parties, v views, M members, d embedding width of a member; H_i rows of the batch
held by party i.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from xvfl.config import TrainConfig
from xvfl.federation.member_rows import join_members, split_members
from xvfl.federation.remote_party import RemoteParty, request_all
from xvfl.methods.base import BatchFunction, Method, View
from xvfl.primitives.rows import Rows
from xvfl.training.optimizer import OptimizedNet, WeightUpdate
from xvfl.wire.messages import (
    Backward,
    Complete,
    Completed,
    CueGradient,
    Done,
    Embed,
    Embedded,
    Flush,
    Gradient,
    Instruction,
)
from xvfl.wire.request_ids import next_request_id

T = TypeVar("T")


@dataclass(frozen=True)
class _RemoteCall:
    """A call to all parties: the leaf tensor of the replies, and the call's inputs."""

    tensor_id: int
    leaf: Tensor
    held: tuple[Tensor, ...] = ()
    """Indices of the batch rows that each party holds; for embeddings."""
    cues: Tensor | None = None
    """The cues with their graph; for completed embeddings."""


@dataclass
class Counters:
    """The number of the last weight update."""

    update: int = 0


class SplitFederation:
    """Remote parties, each behind its transport."""

    def __init__(
        self,
        parties: Sequence[RemoteParty],
        width: int,
        counters: Counters | None = None,
        members: int = 1,
    ) -> None:
        """Take parties in the order of the rows' columns; `width` is that of a member."""
        self.parties = tuple(parties)
        self.members, self._width = members, width
        self.message_width = members * width
        self.counters = counters or Counters()
        self.optimized_nets: dict[str, OptimizedNet] = {}
        self.training = True
        self._calls: list[_RemoteCall] = []

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parties."""
        return tuple(party.name for party in self.parties)

    def begin(self, config: TrainConfig, heads: nn.Module) -> OptimizedNet:
        """Create the optimizer of the heads; a party creates its own when it joins."""
        return OptimizedNet(heads, config)

    def train(self, on: bool) -> None:
        """Set whether the next batches are for training or for prediction."""
        self.training = on

    def embed(self, rows: Rows, views: Sequence[View], needed: Tensor | None = None) -> Tensor:
        """Embed a batch at every party, in each view; `needed` is ignored. (M·B, k, v, d)"""
        assert rows.runs == self.members
        rows = rows.first_run()
        request_id, handles = next_request_id(), rows.handles.cpu().int()
        step, names = int(rows.step), tuple(views)
        requests = []
        for i, party in enumerate(self.parties):
            pending = party.take_pending()
            requests.append(Embed(request_id, *pending, step, self.training, names, handles[:, i]))
        held = tuple(
            (rows.handles[:, i] >= 0).nonzero().flatten() for i in range(len(self.parties))
        )
        replies = request_all(self.parties, requests, Embedded)
        embeddings = []
        for party, reply, at in zip(self.parties, replies, held, strict=True):
            shape = (len(at), len(views), self.message_width)
            values = party.check("embeddings", reply.values, shape, rows.weight.dtype)
            values = values.to(rows.y.device)
            embeddings.append(values.new_zeros(len(rows), *shape[1:]).index_copy(0, at, values))
        leaf = torch.stack(embeddings, 1).requires_grad_(self.training)
        self._calls.append(_RemoteCall(request_id, leaf, held))
        return split_members(leaf, self.members)

    def complete(
        self, cues: Tensor, replace_observed: Tensor, needed: Tensor | None = None
    ) -> Tensor:
        """Embed the last batch, completed from each party's cue. (M·B, k, d)"""
        cues = join_members(cues, self.members)
        # The mask depends on the rows alone: it is the same for every member.
        replaced, request_id = replace_observed[: len(cues)], next_request_id()
        embedded = next(call for call in reversed(self._calls) if call.cues is None)
        requests = [
            Complete(request_id, embedded.tensor_id, cues[:, i].detach(), replaced)
            for i in range(len(self.parties))
        ]
        completed = self._request_rows(requests, Completed, "completed embeddings", cues)
        leaf = completed.requires_grad_(self.training)
        self._calls.append(_RemoteCall(request_id, leaf, cues=cues))
        return split_members(leaf, self.members)

    def _request_rows(
        self,
        requests: Sequence[Complete | Backward],
        reply_type: type[Completed] | type[CueGradient],
        name: str,
        cues: Tensor,
    ) -> Tensor:
        """Request values of the shape of the cues from every party. (B, k, M·d)"""
        replies = request_all(self.parties, requests, reply_type)
        shape = (len(cues), self.message_width)
        values = [
            party.check(name, reply.values, shape, cues.dtype)
            for party, reply in zip(self.parties, replies, strict=True)
        ]
        return torch.stack(values, 1).to(cues.device)

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients of the loss at the coordinator and at every party."""
        torch.autograd.backward(loss, retain_graph=True)
        pending: list[list[Gradient]] = [[] for _ in self.parties]
        for call in reversed(self._calls):
            total = torch.zeros_like(call.leaf) if call.leaf.grad is None else call.leaf.grad
            gradients = [
                Gradient(call.tensor_id, total[call.held[i], i] if call.held else total[:, i])
                for i in range(len(self.parties))
            ]
            if call.cues is not None and call.cues.requires_grad:
                request_id = next_request_id()
                requests = [Backward(request_id, each) for each in gradients]
                cue_gradients = self._request_rows(requests, CueGradient, "cue gradient", call.cues)
                torch.autograd.backward(call.cues, cue_gradients, retain_graph=True)
                continue
            for of_party, gradient in zip(pending, gradients, strict=True):
                of_party.append(gradient)
        self._calls.clear()
        for party, of_party in zip(self.parties, pending, strict=True):
            party.gradients = of_party

    def update(self, update: WeightUpdate) -> None:
        """Queue a numbered update; it is sent together with the gradients that it uses."""
        self.counters.update += 1
        for party in self.parties:
            each = Instruction(self.counters.update, update.kind, float(update.rate))
            party.instructions.append(each)

    def flush(self, save: int = -1) -> None:
        """Send pending gradients and updates; with `save`, parties save a checkpoint."""
        request_id = next_request_id()
        pending = [party.take_pending() for party in self.parties]
        requests = [Flush(request_id, *each, save) for each in pending]
        request_all(self.parties, requests, Done)

    def run_batch(
        self,
        method: Method,
        rows: Rows,
        function: BatchFunction[T],
        only_party: int | None = None,
    ) -> T:
        """Run a function on a batch, with all parties or with the one that it needs."""
        self._calls.clear()
        if only_party is None:
            return function(self, method, rows)
        only = [only_party]
        alone = SplitFederation(
            [self.parties[only_party]], self._width, self.counters, self.members
        )
        alone.train(self.training)
        return function(alone, method.select_parties(only), rows.select_parties(only))

    def start_at(self, update: int) -> int:
        """Forget all pending work, and continue after an update; return a new request id."""
        self._calls.clear()
        for party in self.parties:
            party.take_pending()
        self.counters.update = update
        return next_request_id()
