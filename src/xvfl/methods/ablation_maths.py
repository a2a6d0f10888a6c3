"""Formulas that only ablations of X-VFL use: concatenation, and no cross completion.

Shapes and notation as in `xvfl.maths`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from xvfl.maths import (
    MEAN,
    Aggregation,
    Loss,
    PartyLogits,
    concat_members,
    cross_entropy,
    place_in_blocks,
)


def swapped_blocks(E: Tensor, E_: Tensor) -> Tensor:
    """Replace one party's block at a time by its completion. (B, k, k·d)"""
    k = E.shape[1]
    own = torch.eye(k, dtype=torch.bool, device=E.device).unsqueeze(-1)
    return torch.where(own, E_.unsqueeze(1), E.unsqueeze(1)).flatten(2)


CONCAT = Aggregation(place_in_blocks, concat_members, lambda E: E.flatten(1), swapped_blocks)
"""One block of width d for each party; zeros for parties that do not contribute."""
AGGREGATIONS: dict[str, Aggregation] = {"mean": MEAN, "concat": CONCAT}


@dataclass(frozen=True)
class UncompletedLogits(PartyLogits):
    """Logits used by the loss without cross completion: no input needs Ẽ."""

    seen: Tensor
    """h(mean of E over the parties that observed anything), (B, C)"""


def head_inputs_uncompleted(
    E: Tensor, full: Tensor, seen: Tensor, join: Aggregation = MEAN
) -> Tensor:
    """Stack the head inputs that do not need Ẽ. (B, k + 2, n)"""
    joint, saw = join.over(E, full).unsqueeze(1), join.over(E, seen).unsqueeze(1)
    return torch.cat([join.alone(E), joint, saw], 1)


def used_mask_uncompleted(full: Tensor, seen: Tensor) -> Tensor:
    """Mark the stacked inputs that a loss term of the row uses. (B, k + 2)"""
    several, partial = full.sum(1, keepdim=True) >= 2, (seen & ~full).any(1, keepdim=True)
    return torch.cat([full, several, partial], 1)


def split_logits_uncompleted(out: Tensor) -> UncompletedLogits:
    """Split the logits of the inputs stacked by `head_inputs_uncompleted`. (B, k + 2, C)"""
    own, rest = torch.split(out, [out.shape[1] - 2, 2], 1)
    return UncompletedLogits(own, rest[:, 0], rest[:, 1])


def decision_loss_uncompleted(
    logits: UncompletedLogits, full: Tensor, seen: Tensor, y: Tensor, loss: Loss = cross_entropy
) -> Tensor:
    """Sum the decision terms of each row without cross completion. (B,)

    There are no swapped terms. The last term is the mean over all parties that observed the row,
    zero-filled, and applies to rows that are partial at some party; for other rows it equals the
    joint prediction or the single full party's own (D1).
    """
    own = (loss(logits.own, y) * full).sum(1)
    joint = loss(logits.joint, y) * (full.sum(1) >= 2)
    return own + joint + loss(logits.seen, y) * (seen & ~full).any(1)


def joint_logits_uncompleted(logits: UncompletedLogits, full: Tensor, seen: Tensor) -> Tensor:
    """Select the joint logits of each row without completion. (B, C)

    If no party holds the row partially, they are the logits of the full parties' mean, or the
    single full party's own.
    """
    several, partial = full.sum(1, keepdim=True) >= 2, (seen & ~full).any(1, keepdim=True)
    one = (logits.own * full.unsqueeze(2)).sum(1)
    return torch.where(partial, logits.seen, torch.where(several, logits.joint, one))
