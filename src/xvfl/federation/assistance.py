"""Assisted prediction between organizations: peers help through the coordinator, a party decides.

The coordinator averages the embeddings of the peers that assist a row, as they are (the cue) and as
the head takes them. The party completes its row from the cue and applies the released head. Only
means leave the coordinator, and nothing of the party's row leaves the party.
Shapes: B rows, K peers that answered, P peers of a row at most, M members, d embedding width, n
width of adapted embeddings.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from xvfl import maths
from xvfl.errors import PartyError
from xvfl.federation.member_rows import join_members, split_members
from xvfl.federation.party_worker import PartyWorker
from xvfl.federation.predict_in_time import TimelyBatch
from xvfl.methods.base import Method, View
from xvfl.methods.members import Members
from xvfl.methods.xvfl import XVFL
from xvfl.nets import AdaptedHead
from xvfl.primitives.rows import Rows


def average_peers(
    method: Method, batch: TimelyBatch, members: int, partial: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Average the peers of rows that are incomplete at the requesting party.

    Returns the cue (B, M·d), the adapted mean (B, M·n), and which peers assist (B, K). With
    `partial`, peers that observe a row in part assist where none is full (D8).
    """
    full, seen = batch.rows.full, batch.rows.seen
    assisting = maths.sources(full, seen) if partial else full
    E = batch.E[:, :, 0]
    heads = method.select_parties(batch.places).heads
    adapted = split_members(E, members)
    if isinstance(heads, AdaptedHead) and batch.places:
        adapted = heads.adapt(adapted)
    mean = maths.mean_over(adapted, assisting.repeat(members, 1))
    return maths.mean_over(E, assisting), join_members(mean, members), assisting


def method_with_peers(method: Method, n_peers: int, width: int) -> Method:
    """Return a released method for its party and `n_peers` peers with adapted embeddings.

    `width` is n, that of the adapted embeddings.
    """
    if isinstance(method, Members):
        inner = method_with_peers(method.method, n_peers, width)
        return method.of(inner)
    assert isinstance(method, XVFL)
    heads = method.heads
    if isinstance(heads, AdaptedHead):
        heads = AdaptedHead(heads.head, [heads.adapters[0], *[_FirstNumbers(width)] * n_peers])
    extended = XVFL(heads, method.weights, method.completing, method.task)
    extended.decision_weights = method.decision_weights
    return extended


class AssistedParties:
    """A `Federation` of a party and peers that all have the mean embedding of the real ones.

    The mean over n equal peers and the party is that over the real peers and the party.

    Parameters
    ----------
    worker
        The party.
    members
        Number of members.
    cue
        (B, M·d) mean embedding of the peers.
    peers
        (B, M·n) mean adapted embedding of the peers.
    n_peers
        P, the largest number of peers of a row.
    """

    def __init__(
        self, worker: PartyWorker, members: int, cue: Tensor, peers: Tensor, n_peers: int
    ) -> None:
        self._worker, self._n_peers = worker, n_peers
        self._cue, self._peers = split_members(cue, members), split_members(peers, members)

    @property
    def names(self) -> tuple[str, ...]:
        """The party, and a name for each peer."""
        return (self._worker.name, *(f"peer {i}" for i in range(self._n_peers)))

    def embed(self, rows: Rows, views: Sequence[View], needed: Tensor | None = None) -> Tensor:
        """Embed the party's rows beside the peers' mean. (M·B, 1 + P, v, d)"""
        own = self._worker.embed(rows.handles[:, 0], views, 0).unsqueeze(1)
        padding = own.shape[-1] - self._peers.shape[-1]
        peers = nn.functional.pad(self._peers, (0, padding)).view(len(own), 1, 1, -1)
        return torch.cat([own, peers.expand(-1, self._n_peers, len(views), -1)], 1)

    def complete(
        self, cues: Tensor, replace_observed: Tensor, needed: Tensor | None = None
    ) -> Tensor:
        """Complete the party's rows from the received cue; 0 for the peers. (M·B, 1 + P, d)"""
        own = self._worker.complete(self._cue, replace_observed).unsqueeze(1)
        return torch.cat([own, own.new_zeros(len(own), self._n_peers, own.shape[-1])], 1)

    def backward(self, loss: Tensor) -> None:
        """Reject: a prediction has no gradients."""
        raise PartyError("a prediction has no gradients")


class _FirstNumbers(nn.Module):
    """Take the first numbers of an embedding; the others are padding."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        """Take the first numbers. (…, n)"""
        return x[..., : self.width]
