"""Plain PyTorch loops of two rivals' losses: nets, a loss, an optimizer. Torch alone.

Fixed like `reference`: the code one would write for this loss alone, without missing features.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Loss = Callable[[Sequence[nn.Module], Sequence[Tensor], Tensor], Tensor]
"""Maps heads, every party's embeddings and labels to the loss of a batch."""


def vanilla(heads: Sequence[nn.Module], E: Sequence[Tensor], y: Tensor) -> Tensor:
    """Return the cross-entropy of one head on the concatenated embeddings."""
    return F.cross_entropy(heads[0](torch.cat(list(E), 1)), y)


def laser(heads: Sequence[nn.Module], E: Sequence[Tensor], y: Tensor) -> Tensor:
    """Sum the losses of every party's head on a sampled subset of each size that contains it."""
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
    """Train without end, one step for each `next`; `x` are the inputs of the bottoms."""
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
