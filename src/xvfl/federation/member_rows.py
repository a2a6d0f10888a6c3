"""Rows of several members: one after the other in a net, side by side in a message.

Stacked nets take the rows of the first member, then those of the second, and so on. In a message a
row stays one row: the embeddings of all members follow each other in its last dimension.
Shapes: M members, B rows, d embedding width of a member.
"""

from collections.abc import Sequence

from torch import Tensor

from xvfl.federation.party_worker import PartyWorker
from xvfl.methods.base import View


def join_members(x: Tensor, members: int) -> Tensor:
    """Place the members of a row side by side: (M·B, …, d) to (B, …, M·d)."""
    if members == 1:
        return x
    by_member = x.reshape(members, len(x) // members, *x.shape[1:])
    return by_member.movedim(0, -2).flatten(-2)


def split_members(x: Tensor, members: int) -> Tensor:
    """Place the rows of the members one after the other: (B, …, M·d) to (M·B, …, d)."""
    if members == 1:
        return x
    by_member = x.reshape(*x.shape[:-1], members, x.shape[-1] // members)
    return by_member.movedim(-2, 0).flatten(0, 1)


def embed_rows(worker: PartyWorker, handles: Tensor, views: Sequence[View], step: int) -> Tensor:
    """Embed rows by all members of a party's net. (B, v, M·d)"""
    members = len(worker.seeds)
    repeated = handles.to(worker.table.device).long().repeat(members)
    return join_members(worker.embed(repeated, views, step), members)


def complete_rows(worker: PartyWorker, cue: Tensor, replace_observed: Tensor) -> Tensor:
    """Complete the rows of the last `embed_rows` by all members. (B, M·d)"""
    members = len(worker.seeds)
    replaced = replace_observed.to(cue.device).repeat(members)
    return join_members(worker.complete(split_members(cue, members), replaced), members)
