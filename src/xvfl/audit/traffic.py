"""What the coordinator and a party send each other in training, recorded by row.

Shapes: n rows of the party, d embedding width, v views.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from xvfl.federation.fused import FusedFederation
from xvfl.federation.member_rows import join_members
from xvfl.federation.party_worker import PartyWorker
from xvfl.methods.base import View
from xvfl.primitives.rows import Rows


@dataclass(frozen=True)
class RowVectors:
    """One vector for each of some rows of a party."""

    handles: Tensor
    """(m,) the party's row numbers."""
    values: Tensor
    """(m, w)"""

    def __len__(self) -> int:
        return len(self.handles)


NOTHING = RowVectors(torch.zeros(0, dtype=torch.long), torch.zeros(0, 1))


class Channel:
    """One kind of message: its first batch, the last value of each row, and the mean over steps."""

    def __init__(self, n_rows: int) -> None:
        self.first = NOTHING
        self._last = self._sum = torch.zeros(n_rows, 0)
        self._count = torch.zeros(n_rows)

    def add(self, handles: Tensor, values: Tensor) -> None:
        """Record the values of a batch; rows that the party does not hold are left out."""
        held = handles >= 0
        at, flat = handles[held].long(), values[held].detach().flatten(1).float()
        if not self._last.shape[1]:
            self.first = RowVectors(at, flat.clone())
            self._last, self._sum = (torch.zeros(len(self._count), flat.shape[1]) for _ in "ab")
        self._last[at] = flat
        self._sum[at] += flat
        self._count[at] += 1

    @property
    def last(self) -> RowVectors:
        """The last value of each row."""
        rows = self._count.nonzero().flatten()
        return RowVectors(rows, self._last[rows])

    @property
    def mean(self) -> RowVectors:
        """The mean of each row over all steps."""
        rows = self._count.nonzero().flatten()
        return RowVectors(rows, self._sum[rows] / self._count[rows].unsqueeze(1))


class Traffic:
    """The training messages between the coordinator and one party."""

    def __init__(self, n_rows: int) -> None:
        """Start empty, for a party with this number of rows."""
        self.embedding_gradients = Channel(n_rows)
        """Received by the party, all views of a row side by side."""
        self.masked_gradients = Channel(n_rows)
        """The same, of steps that train on masked copies alone."""
        self.completion_gradients = Channel(n_rows)
        """Received by the party."""
        self.cues = Channel(n_rows)
        """Received by the party; rows without a cue are left out."""
        self.embeddings = Channel(n_rows)
        """Sent by the party, the view `plain` alone."""
        self.masked_embeddings = Channel(n_rows)
        """Sent by the party, the first masked copy in steps that train on masked copies alone."""
        self.completions = Channel(n_rows)
        """Sent by the party."""
        self.n_gradients = 0
        """Number of gradient tensors that the party received."""

    def add_embeddings(self, handles: Tensor, views: Sequence[View], E: Tensor) -> Channel:
        """Record embeddings (B, v, d); return the channel of their gradients."""
        if "plain" in views:
            self.embeddings.add(handles, E[:, views.index("plain")])
            return self.embedding_gradients
        self.masked_embeddings.add(handles, E[:, 0])
        return self.masked_gradients

    def add_cues(self, handles: Tensor, cues: Tensor) -> None:
        """Record cues (B, d)."""
        has_cue = cues.any(1)
        self.cues.add(handles[has_cue], cues[has_cue])


class RecordingFederation(FusedFederation):
    """A federation in one process that records what would be sent in training.

    The gradients of a party's output are those that it would receive in a message.
    """

    def __init__(self, workers: Sequence[PartyWorker], traffic: Mapping[str, Traffic]) -> None:
        super().__init__(workers)
        self._traffic = [traffic[worker.name] for worker in workers]
        self._members = len(workers[0].seeds)
        self._handles: list[Tensor] = []

    def embed(self, rows: Rows, views: Sequence[View], needed: Tensor | None = None) -> Tensor:
        """Embed a batch at every party, in each view. (B, k, v, d)"""
        E = super().embed(rows, views)
        if self.workers[0].net.training:
            first = rows.handles[: len(rows) // self._members]
            self._handles = list(first.unbind(1))
            for place, traffic in enumerate(self._traffic):
                sent = self._message(E[:, place])
                channel = traffic.add_embeddings(self._handles[place], views, sent)
                self._watch(E, place, channel)
        return E

    def complete(
        self, cues: Tensor, replace_observed: Tensor, needed: Tensor | None = None
    ) -> Tensor:
        """Embed the last batch, completed from each party's cue. (B, k, d)"""
        completed = super().complete(cues, replace_observed)
        if self.workers[0].net.training:
            for place, traffic in enumerate(self._traffic):
                traffic.add_cues(self._handles[place], self._message(cues[:, place]))
                sent = self._message(completed[:, place])
                traffic.completions.add(self._handles[place], sent)
                self._watch(completed, place, traffic.completion_gradients)
        return completed

    def _watch(self, output: Tensor, place: int, channel: Channel) -> None:
        """Record the gradient of a party's output when it is computed."""
        traffic, handles = self._traffic[place], self._handles[place]

        def record(gradient: Tensor) -> None:
            traffic.n_gradients += 1
            channel.add(handles, self._message(gradient[:, place]))

        if output.requires_grad:
            output.register_hook(record)  # type: ignore[no-untyped-call]

    def _message(self, x: Tensor) -> Tensor:
        """Place the members of a row side by side, without a graph."""
        return join_members(x.detach(), self._members)
