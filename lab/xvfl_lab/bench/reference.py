"""X-VFL's loss term by term in plain PyTorch: the reference of `xvfl-lab bench`.

Fixed: written from the paper's formulas for readability; do not optimize it. Each formula calls the
nets it names; formulas share nothing but the embeddings. Torch alone. Every row is full at one
party at least, as in the paper. Names: `f` bottoms, `xcom` completers, `h`
the head; of each party `x` encoded features (B, p), 0 where missing, and `o` marks of the observed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Batch:
    """Rows of all parties."""

    x: Sequence[Tensor]
    o: Sequence[Tensor]
    full: Tensor
    """(B, k)"""
    y: Tensor

    def take(self, at: Tensor) -> "Batch":
        """Select rows."""
        return Batch([x[at] for x in self.x], [o[at] for o in self.o], self.full[at], self.y[at])


@dataclass(frozen=True)
class Nets:
    """The nets of all parties, and the head."""

    f: Sequence[nn.Module]
    xcom: Sequence[nn.Module]
    h: nn.Module

    def parameters(self) -> list[nn.Parameter]:
        """List all parameters."""
        return [weight for net in (*self.f, *self.xcom, self.h) for weight in net.parameters()]


def embed(f: nn.Module, x: Tensor, o: Tensor) -> Tensor:
    """E_i = f_i(x_i), with a flag for each observed feature."""
    out: Tensor = f(torch.cat([x, o.to(x.dtype)], 1))
    return out


def aligned_loss(nets: Nets, rows: Batch, lambda1: float, lambda2: float) -> Tensor:
    """Sum the loss of the aligned rows."""
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
    """Sum the loss of the non-aligned rows."""
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
    """Train without end, one step for each `next`."""
    optimizer = torch.optim.AdamW(nets.parameters(), lr=2e-3)
    while True:
        for at in torch.split(torch.randperm(len(rows.y)), size):
            if len(at) == size:
                optimizer.zero_grad()
                loss(nets, rows.take(at), lambda1, lambda2).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                yield
