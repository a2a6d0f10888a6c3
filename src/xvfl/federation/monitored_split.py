"""A federation of remote parties whose answers are checked against their history."""

from collections.abc import Sequence

import torch
from torch import Tensor

from xvfl.federation.party_monitor import AnswerKind, PartyMonitor
from xvfl.federation.party_statistics import spread
from xvfl.federation.remote_party import RemoteParty
from xvfl.federation.split import Counters, SplitFederation
from xvfl.methods.base import View
from xvfl.primitives.rows import Rows

MIN_CUE_SPREAD = 1e-2
"""Deviation of the cues from their mean, relative to their root mean square, from which the
completions are expected to differ."""
GRADIENT_INTERVAL = 10
"""Steps between checks of gradients that are not sent."""


class MonitoredSplit(SplitFederation):
    """A `SplitFederation` that shows every answer, and its gradient, to a `PartyMonitor`."""

    def __init__(
        self,
        monitor: PartyMonitor,
        parties: Sequence[RemoteParty],
        width: int,
        counters: Counters,
        sends_gradients: bool = True,
        members: int = 1,
    ) -> None:
        """Take the monitor; the other arguments are those of `SplitFederation`."""
        super().__init__(parties, width, counters, sends_gradients, members)
        self._monitor = monitor
        self._rows: Rows | None = None
        self._tracks_gradients = False
        self._answers: list[tuple[AnswerKind, Tensor]] = []
        self._suspicious: frozenset[str] = frozenset()
        """Parties with unusual embeddings of the last batch."""

    def _request_embeddings(self, rows: Rows, views: Sequence[View]) -> Tensor:
        """Request the embeddings of a batch, and check them. (B, k, v, M·d)"""
        step = int(rows.step)
        self._tracks_gradients = self.training and step % GRADIENT_INTERVAL == 0
        embeddings = super()._request_embeddings(rows, views)
        self._rows, self._answers, self._suspicious = rows, [], frozenset()
        self._suspicious = self._check("embeddings", embeddings, embeddings.detach(), rows.seen)
        return embeddings

    def _request_completions(
        self, cues: Tensor, replace_observed: Tensor, needed: Tensor | None
    ) -> Tensor:
        """Request the completed embeddings of the last batch, and check them. (B, k, M·d)"""
        completed = super()._request_completions(cues, replace_observed, needed)
        values, counted = completed.detach().unsqueeze(2), cues.detach().abs().sum(-1) > 0
        counted = counted if needed is None else counted & needed
        self._check("completed embeddings", completed, values, counted & self._usual(cues, counted))
        return completed

    def _usual(self, cues: Tensor, counted: Tensor) -> Tensor:
        """Return whose completions can be judged: cues of equal rows or from others' suspicious
        embeddings yield unusual completions at an honest party. (k,)
        """
        trusted = [not self._suspicious - {name} for name in self.names]
        differ = spread(cues.detach(), counted) > MIN_CUE_SPREAD
        return torch.tensor(trusted, device=cues.device) & differ

    def _leaf(self, values: Tensor) -> Tensor:
        """Track gradients for the monitor in some steps, also if they are not sent."""
        leaf = super()._leaf(values)
        return leaf.requires_grad_() if self._tracks_gradients else leaf

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients, and check those of the answers."""
        super().backward(loss)
        for kind, answer in self._answers:
            if answer.grad is not None:
                self._monitor.check_gradients(kind, self.names, answer.grad)
        self._answers = []

    def _check(
        self, kind: AnswerKind, leaf: Tensor, values: Tensor, counted: Tensor
    ) -> frozenset[str]:
        rows = self._rows
        assert rows is not None
        self._answers.append((kind, leaf))
        with torch.no_grad():
            return self._monitor.check_answers(
                kind,
                self.names,
                values,
                counted,
                rows.handles.to(counted.device),
                int(rows.step),
                self.training,
            )
