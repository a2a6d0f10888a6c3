"""Predict a batch with the parties that answer before a deadline (D7).

One exchange embeds the rows at every party, a second one completes them where it is needed. A party
that fails in the second exchange is left out, and the prediction uses observed features alone.
Shapes: N rows, k parties (K of them answer), v views, M members, d embedding width, C outputs.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from xvfl.errors import PartyError, WireError
from xvfl.federation.fused import pad
from xvfl.federation.member_rows import join_members, split_members
from xvfl.federation.message_checks import check_tensor
from xvfl.federation.party_pool import PartyPool
from xvfl.federation.prediction_endpoint import REFUSED
from xvfl.methods.base import Method, Mode, View
from xvfl.methods.pooling import prediction_views, without_completion
from xvfl.primitives.rows import FULL, Rows
from xvfl.wire.messages import Complete, Completed, EmbedRows, RowEmbeddings
from xvfl.wire.request_ids import next_request_id

EMBED_SHARE, COMPLETE_SHARE = 0.55, 0.6
"""Shares of the remaining time after which an exchange ends."""
LATE_SHARE = 0.25
"""Share of the time to wait for parties that still compute an earlier, shorter request."""


@dataclass(frozen=True)
class PartyAnswer:
    """What a party answered about a batch, or what its stored upload has of it."""

    handles: Tensor
    """(N,)"""
    status: Tensor
    """(N,) uint8, see `RowEmbeddings`."""
    E: Tensor
    """(N, v, M·d)"""
    observed: Tensor
    """(N,) share of observed features."""
    refusal: str = ""
    """Which budget refused rows."""


@dataclass(frozen=True)
class TimelyBatch:
    """The embeddings of a batch that arrived in time."""

    answers: Mapping[int, PartyAnswer]
    """By the place of the party, in this order."""
    shape: tuple[int, int, int]
    """(N, v, M·d)"""
    tensor_id: int = 0

    @property
    def places(self) -> tuple[int, ...]:
        """The parties that answered."""
        return tuple(self.answers)

    @property
    def E(self) -> Tensor:
        """(N, K, v, M·d)"""
        return self._stack("E", *self.shape[1:])

    @property
    def observed(self) -> Tensor:
        """(N, K) share of observed features."""
        return self._stack("observed")

    @property
    def status(self) -> Tensor:
        """(N, K) row status, see `RowEmbeddings`."""
        return self._stack("status").to(torch.uint8)

    @property
    def refused(self) -> Tensor:
        """(N, K) rows that a budget refused."""
        return self.status == REFUSED

    @property
    def rows(self) -> Rows:
        """The rows as these parties hold them."""
        n, status, refused = self.shape[0], self.status, self.refused
        handles = self._stack("handles").long().masked_fill(refused, -1)
        seen = (status >= 1) & ~refused
        return Rows(handles, status == FULL, seen, torch.full((n,), -1), torch.ones(n))

    def _stack(self, field: str, *shape: int) -> Tensor:
        """Combine a field of all answers; without any, it is empty. (N, K, …)"""
        parts = [getattr(each, field) for each in self.answers.values()]
        return torch.stack(parts, 1) if parts else torch.zeros(self.shape[0], 0, *shape)


def embed_in_time(
    pool: PartyPool,
    handles: Tensor,
    caller: str,
    views: Sequence[View],
    widths: Sequence[int],
    deadline: float,
) -> TimelyBatch:
    """Request the embeddings of rows (N, k) of handles; `widths` (k,) are M·d of each party.

    Narrower embeddings are padded with zeros.
    """
    width, now = max(widths), time.monotonic()
    asked = pool.available(until=now + LATE_SHARE * (deadline - now))
    tensor_id, now = next_request_id(), time.monotonic()
    requests = {i: EmbedRows(tensor_id, caller, tuple(views), handles[:, i].int()) for i in asked}
    replies = pool.request(requests, RowEmbeddings, now + EMBED_SHARE * (deadline - now))
    answers = {}
    for i, reply in replies.items():
        try:
            own = _unpack(reply, handles[:, i], len(views), widths[i])
        except WireError as error:
            pool.reject_reply(i, error)
            continue
        own = pad(own, width)
        answers[i] = PartyAnswer(
            handles[:, i], reply.row_status, own, reply.observed, reply.refusal
        )
    return TimelyBatch(answers, (len(handles), len(views), width), tensor_id)


def predict_in_time(
    pool: PartyPool,
    method: Method,
    batch: TimelyBatch,
    members: int,
    deadline: float,
    assisted: int | None = None,
) -> tuple[Tensor, TimelyBatch, bool]:
    """Compute the logits of a batch in mode collaborative, or `assisted` for a party of the pool.

    Returns the logits (N, C), the batch of the parties that took part, and whether missing features
    were completed as the method does it.
    """
    views, completed = prediction_views(method), True
    mode: Mode = "collaborative" if assisted is None else "assisted"
    while batch.places and (assisted is None or assisted in batch.places):
        at = 0 if assisted is None else batch.places.index(assisted)
        chosen = method.select_parties(batch.places)
        if not completed:
            chosen = without_completion(chosen) or chosen
        try:
            parties = _TimelyParties(pool, batch, views, members, deadline)
            return chosen.logits(parties, batch.rows, mode, at), batch, completed
        except PartyError as error:
            completed, names = False, pool.names
            left = {i: each for i, each in batch.answers.items() if names[i] not in error.parties}
            batch = replace(batch, answers=left)
    return torch.zeros(batch.shape[0], 0), batch, True


@dataclass(frozen=True)
class _TimelyParties:
    """A `Federation` for the prediction of one batch whose embeddings have arrived."""

    pool: PartyPool
    batch: TimelyBatch
    views: Sequence[View]
    members: int
    deadline: float

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parties that answered."""
        names = self.pool.names
        return tuple(names[i] for i in self.batch.places)

    def embed(self, rows: Rows, views: Sequence[View], needed: Tensor | None = None) -> Tensor:
        """Return the embeddings that have arrived. (M·N, K, v, d)"""
        at = [self.views.index(each) for each in views]
        return split_members(self.batch.E[:, :, at], self.members)

    def complete(
        self, cues: Tensor, replace_observed: Tensor, needed: Tensor | None = None
    ) -> Tensor:
        """Request completed embeddings from the parties with rows that are not full. (M·N, K, d)

        Cues of full rows are not sent, and the result is 0 there.
        """
        full, places = self.batch.rows.full, self.batch.places
        cues = join_members(cues, self.members)
        request_id, now = next_request_id(), time.monotonic()
        replaced = torch.zeros(len(cues), dtype=torch.bool)
        missing = [n for n in range(len(places)) if not bool(full[:, n].all())]
        sent = cues.masked_fill(full.unsqueeze(2), 0.0)
        requests = {
            places[n]: Complete(request_id, self.batch.tensor_id, sent[:, n], replaced)
            for n in missing
        }
        wait = COMPLETE_SHARE * (self.deadline - now)
        replies = self.pool.request(requests, Completed, now + wait)
        completed, failed = torch.zeros_like(cues), []
        for n in missing:
            try:
                values = replies[places[n]].values
                completed[:, n] = check_tensor("completed", values, cues[:, n].shape, cues.dtype)
            except KeyError:
                failed.append(places[n])
            except WireError as error:
                self.pool.reject_reply(places[n], error)
                failed.append(places[n])
        if failed:
            names = tuple(self.pool.names[i] for i in failed)
            raise PartyError(f"no completion in time from {', '.join(names)}", names)
        return split_members(completed, self.members)

    def backward(self, loss: Tensor) -> None:
        """Reject: a prediction has no gradients."""
        raise PartyError("a prediction has no gradients")


def _unpack(reply: RowEmbeddings, handles: Tensor, n_views: int, width: int) -> Tensor:
    """Validate a reply; return the embeddings of all rows, 0 where there is none. (N, v, M·d)"""
    n, status = len(handles), reply.row_status
    check_tensor("row_status", status, (n,), torch.uint8)
    check_tensor("observed", reply.observed, (n,), torch.float32)
    if n and (int(status.max()) > REFUSED or bool((status[handles < 0] > 0).any())):
        raise WireError("row_status: expected 0 to 3, and 0 for rows that the party does not hold")
    if n and not 0 <= float(reply.observed.min()) <= float(reply.observed.max()) <= 1:
        raise WireError("observed: expected shares from 0 to 1")
    held = ((handles >= 0) & (status != REFUSED)).nonzero().flatten()
    values = check_tensor("embeddings", reply.values, (len(held), n_views, width), torch.float32)
    return values.new_zeros(n, n_views, width).index_copy(0, held, values)
