"""X-VFL's loss written term by term in plain PyTorch: what `xvfl-lab bench` compares a step with.

Pinned: written once from the paper's formulas, for reading, and not to be made faster. Each formula
calls the nets it names; nothing is shared between formulas but the embeddings. Torch alone.
Rows are full at one party at least, as in the paper. Names: `f` bottoms, `xcom` completers, `h`
the head; of each party `x` encoded features (B, p), 0 where missing, and `o` marks of the observed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Batch:
    """Rows as every party holds them."""

    x: Sequence[Tensor]
    o: Sequence[Tensor]
    full: Tensor
    """(B, k)"""
    y: Tensor

    def take(self, at: Tensor) -> "Batch":
        """Give some of the rows."""
        return Batch([x[at] for x in self.x], [o[at] for o in self.o], self.full[at], self.y[at])


@dataclass(frozen=True)
class Nets:
    """Everybody's nets."""

    f: Sequence[nn.Module]
    xcom: Sequence[nn.Module]
    h: nn.Module

    def parameters(self) -> list[nn.Parameter]:
        """List all weights."""
        return [weight for net in (*self.f, *self.xcom, self.h) for weight in net.parameters()]


def embed(f: nn.Module, x: Tensor, given: Tensor) -> Tensor:
    """E_i = f_i(x_i), with a mark for each feature that is given."""
    out: Tensor = f(torch.cat([x, given.to(x.dtype)], 1))
    return out


def aligned_loss(nets: Nets, rows: Batch, lambda1: float, lambda2: float) -> Tensor:
    """Add the terms of rows that are full at every party, over all of them."""
    f, h, y, k = nets.f, nets.h, rows.y, len(nets.f)
    E = [embed(f[i], rows.x[i], rows.o[i]) for i in range(k)]
    joint = torch.stack(E).mean(0)
    E_ = []
    for i in range(k):
        cue = torch.stack([E[j] for j in range(k) if j != i]).mean(0)
        E_.append(embed(f[i], nets.xcom[i](cue), torch.ones_like(rows.o[i])))
    decision = F.cross_entropy(h(joint), y, reduction="sum")
    for i in range(k):
        swapped = torch.stack([E_[j] if j == i else E[j] for j in range(k)]).mean(0)
        decision = decision + F.cross_entropy(h(E[i]), y, reduction="sum")
        decision = decision + F.cross_entropy(h(swapped), y, reduction="sum")
    first = sum(mse(h(E_[i]), h(E[i])) for i in range(k))
    decided = h(joint)
    second = sum(mse(h(E[i]), decided) for i in range(k))
    return decision + lambda1 * first + lambda2 * second


def other_loss(nets: Nets, rows: Batch) -> Tensor:
    """Add the terms of rows that some party does not hold in full, over all of them."""
    f, h, y, k = nets.f, nets.h, rows.y, len(nets.f)
    E = [embed(f[i], rows.x[i], rows.o[i]) for i in range(k)]
    joint = h(mean(E, rows.full))
    loss = (F.cross_entropy(joint, y, reduction="none") * (rows.full.sum(1) >= 2)).sum()
    filled = []
    for i in range(k):
        here = rows.full[:, i]
        loss = loss + (F.cross_entropy(h(E[i]), y, reduction="none") * here).sum()
        others = rows.full.clone()
        others[:, i] = False
        guess = nets.xcom[i](mean(E, others))
        completed = torch.where(rows.o[i], rows.x[i], guess)
        E_ = embed(f[i], completed, torch.ones_like(rows.o[i]))
        filled.append(torch.where(here.unsqueeze(1), E[i], E_))
    return loss + F.cross_entropy(h(torch.stack(filled).mean(0)), y, reduction="sum")


def mean(E: Sequence[Tensor], members: Tensor) -> Tensor:
    """Average over the members of each row."""
    total = sum(each * members[:, i : i + 1] for i, each in enumerate(E))
    return total / members.sum(1, keepdim=True).clamp(min=1)


def mse(a: Tensor, b: Tensor) -> Tensor:
    """Squared difference, its mean over the classes, summed over the rows."""
    return (a - b).square().mean(1).sum()


def loss(nets: Nets, batch: Batch, lambda1: float, lambda2: float) -> Tensor:
    """Average the loss of a batch over its rows."""
    aligned = batch.full.all(1)
    whole = aligned_loss(nets, batch.take(aligned), lambda1, lambda2)
    return (whole + other_loss(nets, batch.take(~aligned))) / len(batch.y)


def train(nets: Nets, rows: Batch, size: int, lambda1: float, lambda2: float) -> Iterator[None]:
    """Train for ever, one step each time it is asked."""
    optimizer = torch.optim.AdamW(nets.parameters(), lr=2e-3)
    while True:
        for at in torch.split(torch.randperm(len(rows.y)), size):
            if len(at) == size:
                optimizer.zero_grad()
                loss(nets, rows.take(at), lambda1, lambda2).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                yield
