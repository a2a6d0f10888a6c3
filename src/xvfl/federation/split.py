"""The federation cut open: every call goes out to parties elsewhere and comes back as a leaf.

`backward` fills the leaves' gradients and walks the cuts in reverse: those of completed embeddings
go out and come back as the cues' gradients, which flow on into the embeddings. The total ∂L/∂E
and the update ride on the next `embed`, or on a `flush`.
Shapes: B rows, k parties, v views, d embedding width; H_i rows of the batch held by party i.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from xvfl.config import TrainConfig
from xvfl.federation.remote_party import RemoteParty, ask
from xvfl.methods.base import Method, View, Work
from xvfl.primitives.rows import Rows
from xvfl.training.optimizer import OptimizedNet, Update
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

T = TypeVar("T")


@dataclass(frozen=True)
class _Cut:
    """A call that went out: what came back as a leaf, and what went in."""

    ticket: int
    leaf: Tensor
    handles: Tensor
    """(B, k): the rows, as each party knows them."""
    held: tuple[Tensor, ...] = ()
    """Rows of the batch that each party holds; of an embedding."""
    cues: Tensor | None = None
    """With its graph; of a completion."""


@dataclass
class Counters:
    """What is encode_labels: questions, and updates of the weights."""

    turn: int = 0
    update: int = 0


class SplitFederation:
    """Parties elsewhere, each behind its transport."""

    def __init__(
        self, peers: Sequence[RemoteParty], width: int, counters: Counters | None = None
    ) -> None:
        """Join parties whose embeddings have this width, in the order of the rows' columns."""
        self.peers = tuple(peers)
        self.width = width
        self.counters = counters or Counters()
        self.optimized_nets: dict[str, OptimizedNet] = {}
        self.training = True
        self._cuts: list[_Cut] = []

    @property
    def names(self) -> tuple[str, ...]:
        """The parties' names."""
        return tuple(peer.name for peer in self.peers)

    def begin(self, config: TrainConfig, heads: nn.Module) -> OptimizedNet:
        """Hold the heads alone: a party makes its optimizer when it begins a run."""
        return OptimizedNet(heads, config)

    def train(self, on: bool) -> None:
        """Say whether the next batches are for training or for prediction."""
        self.training = on

    def embed(self, rows: Rows, views: Sequence[View], wanted: Tensor | None = None) -> Tensor:
        """Embed a batch at every party, in each view, wanted or not. (B, k, v, d)"""
        turn, handles = self._turn(), rows.handles.cpu().int()
        step = int(rows.step)
        questions = []
        for i, peer in enumerate(self.peers):
            gradients, instructions = peer.take_pending()
            questions.append(
                Embed(
                    turn, gradients, instructions, step, self.training, tuple(views), handles[:, i]
                )
            )
        held = tuple((rows.handles[:, i] >= 0).nonzero().flatten() for i in range(len(self.peers)))
        answers = ask(self.peers, questions, Embedded)
        made = []
        for peer, answer, at in zip(self.peers, answers, held, strict=True):
            shape = (len(at), len(views), self.width)
            values = peer.checked("embeddings", answer.values, shape, rows.weight.dtype)
            values = values.to(rows.y.device)
            made.append(values.new_zeros(len(rows), *shape[1:]).index_copy(0, at, values))
        leaf = torch.stack(made, 1).requires_grad_(self.training)
        self._cuts.append(_Cut(turn, leaf, handles, held))
        return leaf

    def complete(self, cues: Tensor, whole: Tensor, wanted: Tensor | None = None) -> Tensor:
        """Embed the batch just embedded, completed from each party's cue. (B, k, d)"""
        turn = self._turn()
        embedded = next(cut for cut in reversed(self._cuts) if cut.cues is None)
        questions = [
            Complete(turn, embedded.ticket, peer.packer.pack(cues[:, i]), whole)
            for i, peer in enumerate(self.peers)
        ]
        answers = ask(self.peers, questions, Completed)
        shape = (len(cues), self.width)
        made = [
            peer.checked("completed embeddings", answer.values, shape, cues.dtype)
            for peer, answer in zip(self.peers, answers, strict=True)
        ]
        leaf = torch.stack(made, 1).to(cues.device).requires_grad_(self.training)
        self._cuts.append(_Cut(turn, leaf, embedded.handles, cues=cues))
        return leaf

    def backward(self, loss: Tensor) -> None:
        """Send the gradients of the loss to every party, each back through the calls it made."""
        torch.autograd.backward(loss, retain_graph=True)
        owed: list[list[Gradient]] = [[] for _ in self.peers]
        for cut in reversed(self._cuts):
            total = torch.zeros_like(cut.leaf) if cut.leaf.grad is None else cut.leaf.grad
            gradients = [
                Gradient(cut.ticket, self._packed(i, cut, total)) for i in range(len(self.peers))
            ]
            if cut.cues is not None and cut.cues.requires_grad:
                back = self._cue_gradients(gradients, cut.cues)
                torch.autograd.backward(cut.cues, back, retain_graph=True)
                continue
            for mine, gradient in zip(owed, gradients, strict=True):
                mine.append(gradient)
        self._cuts.clear()
        for peer, mine in zip(self.peers, owed, strict=True):
            peer.gradients = mine

    def update(self, update: Update) -> None:
        """Give an update its number; it goes out with the gradients it uses."""
        self.counters.update += 1
        for peer in self.peers:
            each = Instruction(self.counters.update, update.kind, float(update.rate))
            peer.instructions.append(each)

    def flush(self, save: int = -1) -> None:
        """Send out what waits for the next batch; `save` has the parties keep a checkpoint."""
        turn = self._turn()
        pending = [peer.take_pending() for peer in self.peers]
        ask(self.peers, [Flush(turn, *each, save) for each in pending], Done)

    def run_batch(self, method: Method, rows: Rows, work: Work[T], alone: int | None = None) -> T:
        """Do some work on a batch with these parties, all of which must be there."""
        self._cuts.clear()
        return work(self, method, rows)

    def _packed(self, party: int, cut: _Cut, total: Tensor) -> Tensor:
        packer, handles = self.peers[party].packer, cut.handles[:, party]
        if cut.cues is not None:
            return packer.pack_gradient("completed", total[:, party], handles)
        held = cut.held[party]
        return packer.pack_gradient("embedded", total[held, party], handles[held.cpu()])

    def _cue_gradients(self, gradients: Sequence[Gradient], cues: Tensor) -> Tensor:
        turn = self._turn()
        answers = ask(self.peers, [Backward(turn, each) for each in gradients], CueGradient)
        made = [
            peer.checked("cue gradient", answer.values, (len(cues), self.width), cues.dtype)
            for peer, answer in zip(self.peers, answers, strict=True)
        ]
        return torch.stack(made, 1).to(cues.device)

    def _turn(self) -> int:
        self.counters.turn += 1
        return self.counters.turn
