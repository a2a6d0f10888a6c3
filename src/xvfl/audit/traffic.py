"""What the coordinator and a party send each other in training, recorded by row.

Shapes: n rows of the party, d embedding width, v views.
"""

from concurrent.futures import Future
from dataclasses import dataclass

import torch
from torch import Tensor

from xvfl.federation.endpoint import Endpoint
from xvfl.wire.in_process import InProcessTransport
from xvfl.wire.messages import (
    Backward,
    Complete,
    Completed,
    Embed,
    Embedded,
    Flush,
    Gradient,
    Message,
)


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
        at, flat = handles[held].long(), values[held].detach().flatten(1)
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
        self._handles: dict[int, Tensor] = {}
        self._completed: set[int] = set()
        self._masked: set[int] = set()
        """Requests of masked copies alone."""

    def record(self, request: Message, reply: Message) -> None:
        """Record a request to the party and its reply."""
        if isinstance(request, Embed | Flush):
            for gradient in request.gradients:
                self._add_gradient(gradient)
        if isinstance(request, Backward):
            self._add_gradient(request.gradient)
        if isinstance(request, Embed):
            self._handles.clear()
            self._completed.clear()
            self._masked.clear()
            if request.training and isinstance(reply, Embedded):
                self._handles[request.request_id] = request.handles
                held = request.handles[request.handles >= 0]
                if "plain" in request.views:
                    self.embeddings.add(held, reply.values[:, request.views.index("plain")])
                else:
                    self._masked.add(request.request_id)
                    self.masked_embeddings.add(held, reply.values[:, 0])
        if isinstance(request, Complete) and request.tensor_id in self._handles:
            handles = self._handles[request.tensor_id]
            self._handles[request.request_id] = handles
            self._completed.add(request.request_id)
            has_cue = request.cue.any(1)
            self.cues.add(handles[has_cue], request.cue[has_cue])
            if isinstance(reply, Completed):
                self.completions.add(handles, reply.values)

    def _add_gradient(self, gradient: Gradient) -> None:
        self.n_gradients += 1
        handles = self._handles.get(gradient.tensor_id)
        if handles is None:
            return
        if gradient.tensor_id in self._completed:
            self.completion_gradients.add(handles, gradient.values)
        else:
            masked = gradient.tensor_id in self._masked
            channel = self.masked_gradients if masked else self.embedding_gradients
            channel.add(handles[handles >= 0], gradient.values)


class RecordingTransport(InProcessTransport):
    """A transport to a party in this process that records the traffic."""

    def __init__(self, endpoint: Endpoint, traffic: Traffic) -> None:
        super().__init__(endpoint.hello, endpoint.handle)
        self._traffic = traffic

    def request(self, message: Message) -> Future[Message]:
        """Send a request and record it with its reply."""
        answer = super().request(message)
        self._traffic.record(message, answer.result())
        return answer
