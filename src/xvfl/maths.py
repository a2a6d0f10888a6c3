"""X-VFL as one pure file: cues, merge, decision loss, DSAlign, overall loss, for any k ≥ 2.

Q. Yao, X. Xu, Z. Li. X-VFL: a new vertical federated learning framework with cross completion
and decision subspace alignment. 2025. Equation labels below are the paper's.

Shapes: B rows, k parties, d embedding width, C classes.
    E      (B, k, d)  embeddings E_i = f_i(x_i)
    E_     (B, k, d)  completed embeddings Ẽ_i = f_i(x̂_i)
    full   (B, k)     bool, the row is full at the party: the paper's set M, row by row
    seen   (B, k)     bool, the party observed anything of the row
    n      width of the head's input: d, or k·d where embeddings are put side by side
Rows of a batch mix freely: aligned (full everywhere), partial, absent. Every function is dense and
free of branches on data, so that it can be captured, batched and compared with its slow twin.
Entries of E and E_ that no term needs may hold anything finite.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

UNLABELED = -1
"""The class of a row without label; a number that is the label of no row is NaN."""
Loss = Callable[[Tensor, Tensor], Tensor]
"""A loss of outputs (B, …, C) against labels (B,), or against other outputs, unreduced. (B, …)"""


def mean_over(E: Tensor, members: Tensor) -> Tensor:
    """Average E over the member parties of each row; zero where there is none. (B, d)"""
    weight = members.to(E.dtype)
    total = (E * weight.unsqueeze(-1)).sum(1)
    return total / weight.sum(1, keepdim=True).clamp(min=1)


def others(full: Tensor, party: int) -> Tensor:
    """Take the party out of the full ones of each row. (B, k)"""
    column = torch.arange(full.shape[1], device=full.device)
    return full & (column != party)


def concat_members(E: Tensor, members: Tensor) -> Tensor:
    """Concatenate the parties' E of each row, zeros for non-members. (B, k·d)"""
    return (E * members.to(E.dtype).unsqueeze(-1)).flatten(1)


def place_in_blocks(E: Tensor) -> Tensor:
    """Place each party's E in its own block of an otherwise zero vector. (B, k, …, k·d)"""
    k = E.shape[1]
    own = torch.eye(k, dtype=E.dtype, device=E.device).view(k, *[1] * (E.dim() - 3), k, 1)
    return (E.unsqueeze(-2) * own).flatten(-2)


def sources(full: Tensor, seen: Tensor) -> Tensor:
    """Select the parties a cue averages: M, or those that observed anything if M is empty (D2)."""
    return full | seen & ~full.any(1, keepdim=True)


def assistants(full: Tensor, seen: Tensor, party: int, partial: bool) -> Tensor:
    """Select the peers that assist a party with missing features; none if it is full. (B, k)

    The paper's assistants are full. With `partial` (D8), they are the sources of the party's cue:
    where no party is full, those that observed anything.
    """
    return others(sources(full, seen) if partial else full, party) & ~full[:, [party]]


def cues(E: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
    """Average the sources other than i for each party i (eq. vfl_xcom_k_1, vfl_xcom_k_2).

    Returns the cues (B, k, d) and whether party i has one at all (B, k).
    """
    weight = source.to(E.dtype)
    weighted = E * weight.unsqueeze(-1)
    others = weighted.sum(1, keepdim=True) - weighted
    count = weight.sum(1, keepdim=True) - weight
    return others / count.clamp(min=1).unsqueeze(-1), count > 0


def merge(x: Tensor, completed: Tensor, observed: Tensor) -> Tensor:
    """Keep observed values and take missing ones from the completer: o ⊙ x + (1 − o) ⊙ X̃."""
    return torch.where(observed, x, completed)


def swapped(E: Tensor, E_: Tensor) -> Tensor:
    """Replace one party at a time by its completion: (Ẽ_i + Σ_{j≠i} E_j) / k. (B, k, d)"""
    return (E.sum(1, keepdim=True) - E + E_) / E.shape[1]


@dataclass(frozen=True)
class Aggregation:
    """How the parties' embeddings are combined into one head input of width n."""

    alone: Callable[[Tensor], Tensor]
    """Each party by itself: (B, k, …, d) to (B, k, …, n)."""
    over: Callable[[Tensor, Tensor], Tensor]
    """The members of each row: E (B, k, d) and members (B, k) to (B, n)."""
    everyone: Callable[[Tensor], Tensor]
    """All parties: (B, k, d) to (B, n)."""
    swapped: Callable[[Tensor, Tensor], Tensor]
    """All parties, one at a time replaced by its completion: E and Ẽ to (B, k, n)."""


# Named functions, because pickle cannot store lambdas.
def identity(E: Tensor) -> Tensor:
    """Return the embeddings unchanged."""
    return E


def mean_of_all(E: Tensor) -> Tensor:
    """Average the embeddings of all parties. (B, d)"""
    return E.mean(1)


MEAN = Aggregation(identity, mean_over, mean_of_all, swapped)
"""The paper's mean: any subset of parties gives a valid input of width d (D5)."""


def filled(
    E: Tensor, E_: Tensor, full: Tensor, has_cue: Tensor, join: Aggregation = MEAN
) -> Tensor:
    """Combine full parties' E and the others' Ẽ: (Σ_{i∉M} Ẽ_i + Σ_{j∈M} E_j) / k. (B, n)

    A party without a cue has no Ẽ and keeps its zero-filled E (D2).
    """
    return join.everyone(torch.where((full | ~has_cue).unsqueeze(-1), E, E_))


def average_completions(E_: Tensor, own: Tensor, seen: Tensor) -> Tensor:
    """Average a party's completions from its peers' cue and from its own. (B, k, d)

    Part of xvfl+, not of the paper. A party that observed nothing of the row has no own cue.
    """
    return torch.where(seen.unsqueeze(-1), (E_ + own) / 2, E_)


def pool_decisions(decisions: Tensor, weights: Sequence[float] | Tensor) -> Tensor:
    """Add decisions, log-probabilities (B, n, C), with weights (D9). (B, C)

    The weights are n numbers, or (R, n) for the rows of R runs. Part of xvfl+, not of the paper.
    """
    w = torch.as_tensor(weights, dtype=decisions.dtype, device=decisions.device)
    if w.dim() == 2:
        w = w.repeat_interleave(len(decisions) // len(w), 0)
    return (decisions * w.unsqueeze(-1)).sum(1)


@dataclass(frozen=True)
class PartyLogits:
    """Logits of each party's own embedding and of the full parties' mean."""

    own: Tensor
    """h(E_i), (B, k, C)"""
    joint: Tensor
    """h(mean of E over M), (B, C)"""


@dataclass(frozen=True)
class Logits(PartyLogits):
    """Logits of every head input used by the loss."""

    completed: Tensor
    """h(Ẽ_i), (B, k, C)"""
    swapped: Tensor
    """h((Ẽ_i + Σ_{j≠i} E_j) / k), (B, k, C)"""
    filled: Tensor
    """h((Σ_{i∉M} Ẽ_i + Σ_{j∈M} E_j) / k), (B, C)"""


def head_inputs(
    E: Tensor, E_: Tensor, full: Tensor, has_cue: Tensor, join: Aggregation = MEAN
) -> Tensor:
    """Stack every head input used by the loss, for one call of the head. (B, 3k + 2, n)"""
    joint = join.over(E, full).unsqueeze(1)
    means = filled(E, E_, full, has_cue, join).unsqueeze(1)
    return torch.cat([join.alone(E), join.alone(E_), join.swapped(E, E_), joint, means], 1)


def used_mask(full: Tensor) -> Tensor:
    """Mark the inputs stacked by `head_inputs` that a loss term of the row uses. (B, 3k + 2)"""
    aligned = full.all(1, keepdim=True)
    everyone = aligned.expand_as(full)
    return torch.cat([full, everyone, everyone, full.sum(1, keepdim=True) >= 2, ~aligned], 1)


def split_logits(out: Tensor) -> Logits:
    """Split the logits of the inputs stacked by `head_inputs`. (B, 3k + 2, C)"""
    k = (out.shape[1] - 2) // 3
    own, completed, swap, rest = torch.split(out, [k, k, k, 2], 1)
    return Logits(own, rest[:, 0], completed, swap, rest[:, 1])


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy ℓ of logits (B, …, C) against labels, unreduced. (B, …)

    Labels y are classes (B,) or weights of the classes (B, C). Unlabeled rows, y = −1, count 0.
    """
    if y.dim() == 2:
        weights = y.view(len(y), *[1] * (logits.dim() - 2), -1)
        return -(weights * logits.log_softmax(-1)).sum(-1)
    target = y.view(-1, *[1] * (logits.dim() - 2)).expand(logits.shape[:-1])
    each = F.cross_entropy(
        logits.flatten(0, -2), target.flatten(), ignore_index=UNLABELED, reduction="none"
    )
    return each.view(target.shape)


def soft_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy of logits against the probabilities of target logits, both (B, …, C). (B, …)"""
    return -(target.softmax(-1) * logits.log_softmax(-1)).sum(-1)


def squared_error(out: Tensor, y: Tensor) -> Tensor:
    """Squared error ℓ of numbers (B, …, 1) against labels (B,), unreduced. (B, …)

    Part of the extension to regression, not of the paper. Unlabeled rows, y = NaN, count 0.
    """
    labels = y.view(-1, *[1] * (out.dim() - 2))
    return (out.squeeze(-1) - labels.nan_to_num()).square() * ~labels.isnan()


def is_labeled(y: Tensor) -> Tensor:
    """Return which labels are known, of classes or of numbers. (B,)"""
    return ~y.isnan() if y.is_floating_point() else y >= 0


def decision_loss(logits: Logits, full: Tensor, y: Tensor, loss: Loss = cross_entropy) -> Tensor:
    """Sum the decision terms of each row (eq. l_ce_aligned_non_aligned_k, with D1 and D2). (B,)"""
    aligned = full.all(1)
    own = (loss(logits.own, y) * full).sum(1)
    joint = loss(logits.joint, y) * (full.sum(1) >= 2)
    swap = loss(logits.swapped, y).sum(1) * aligned
    fill = loss(logits.filled, y) * ~aligned
    return own + joint + swap + fill


def dsalign_completed(logits: Logits, full: Tensor, stop_gradient: bool = False) -> Tensor:
    """Align the logits of completed features with those of real ones (eq. DSAlign_1_k). (B,)"""
    target = logits.own.detach() if stop_gradient else logits.own
    return (logits.completed - target).square().mean(-1).sum(1) * full.all(1)


def dsalign_joint(logits: PartyLogits, full: Tensor, stop_gradient: bool = False) -> Tensor:
    """Align each party's logits with the joint ones (eq. DSAlign_2_k). (B,)"""
    target = logits.joint.detach() if stop_gradient else logits.joint
    return (logits.own - target.unsqueeze(1)).square().mean(-1).sum(1) * full.all(1)


def self_completion_loss(
    logits: Tensor, seen: Tensor, y: Tensor, loss: Loss = cross_entropy
) -> Tensor:
    """Sum the losses on masked copies of a row: Σ ℓ(h(cue)) + ℓ(h(f_i(x̂_i))). (B,)

    Part of xvfl+, not of the paper. A cue is f_i(masked x_i), and x̂_i is completed from it.
    `logits` (B, k·v, C) holds v predictions of each party; a party that observed nothing of the row
    is left out. The predictions of all parties together, from the mean of their embeddings of
    copies, count as those of one more party.
    """
    each = loss(logits, y).view(*seen.shape, -1)
    return (each.sum(-1) * seen).sum(1)


def joint_logits(logits: Logits, full: Tensor) -> Tensor:
    """Select the joint logits of each row, with missing features completed. (B, C)"""
    return torch.where(full.all(1, keepdim=True), logits.joint, logits.filled)


def guidance_loss(
    logits: Tensor, joint: Tensor, seen: Tensor, distance: Loss = soft_cross_entropy
) -> Tensor:
    """Sum the distance of masked copies from the joint prediction as soft label. (B,)

    Part of xvfl+, not of the paper. `logits` as in `self_completion_loss`; no gradient flows into
    the joint logits (B, C).
    """
    each = distance(logits, joint.detach().unsqueeze(1)).view(*seen.shape, -1)
    return (each.sum(-1) * seen).sum(1)


def overall(
    logits: Logits,
    full: Tensor,
    y: Tensor,
    lambda1: float | Tensor,
    lambda2: float | Tensor,
    *,
    stop_gradient: bool = False,
    loss: Loss = cross_entropy,
) -> dict[str, Tensor]:
    """Compute the three weighted losses of each row; the loss is their sum (eq. overall_k). (B,)

    λ1 and λ2 are numbers, or one for each row. (B,)
    """
    return {
        "decision": decision_loss(logits, full, y, loss),
        "dsalign1": lambda1 * dsalign_completed(logits, full, stop_gradient),
        "dsalign2": lambda2 * dsalign_joint(logits, full, stop_gradient),
    }
