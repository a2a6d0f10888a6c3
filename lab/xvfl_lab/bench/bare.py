"""Bare PyTorch loops of the rivals' losses: nets, a loss, an optimizer, nothing else. Torch alone.

Pinned like `reference`: what somebody writes who needs this one loss and no missing features.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Loss = Callable[[Sequence[nn.Module], Sequence[Tensor], Tensor], Tensor]
"""Heads, every party's embeddings and labels to the loss of a batch."""


def vanilla(heads: Sequence[nn.Module], E: Sequence[Tensor], y: Tensor) -> Tensor:
    """Take the cross-entropy of one head over all embeddings side by side."""
    return F.cross_entropy(heads[0](torch.cat(list(E), 1)), y)


def laser(heads: Sequence[nn.Module], E: Sequence[Tensor], y: Tensor) -> Tensor:
    """Let every party's head decide a drawn subset of each size, with the party, for each row."""
    together = torch.stack(list(E), 1)
    rows, k = together.shape[:2]
    loss = together.new_zeros(())
    for i, head in enumerate(heads):
        order = torch.rand(rows, k)
        order[:, i] = -1
        rank = order.argsort(1).argsort(1)
        for size in range(1, k + 1):
            members = (rank < size).to(together.dtype).unsqueeze(2)
            mean = (together * members).sum(1) / size
            weight = math.comb(k - 1, size - 1) / size
            loss = loss + weight * F.cross_entropy(head(mean), y)
    return loss


LOSSES: dict[str, Loss] = {"vanilla": vanilla, "laser": laser}


def train(
    loss: Loss,
    bottoms: Sequence[nn.Module],
    heads: Sequence[nn.Module],
    x: Sequence[Tensor],
    y: Tensor,
    size: int,
    fused: bool,
) -> Iterator[None]:
    """Train for ever, one step each time it is asked; `x` is what each bottom sees of the rows."""
    weights = [weight for net in (*bottoms, *heads) for weight in net.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=2e-3, fused=fused or None)
    while True:
        for at in torch.split(torch.randperm(len(y)), size):
            if len(at) == size:
                optimizer.zero_grad()
                E = [bottom(each[at]) for bottom, each in zip(bottoms, x, strict=True)]
                loss(heads, E, y[at]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                yield
