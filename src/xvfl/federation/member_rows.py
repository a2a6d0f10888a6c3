"""Rows of several members: one after the other in a net, side by side in a message.

Stacked nets take the rows of the first member, then those of the second, and so on. In a message a
row stays one row: the embeddings of all members follow each other in its last dimension.
Shapes: M members, B rows, d embedding width of a member.
"""

from torch import Tensor


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
