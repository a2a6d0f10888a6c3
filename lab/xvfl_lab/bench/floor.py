"""A lower bound of a step: the matrix products that X-VFL's loss needs, and the optimizer's step.

No activations, losses, data or autograd; products are written into preallocated tensors.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor


@dataclass(frozen=True)
class NetPass:
    """Rows that pass forward and backward through a net of linear layers."""

    net: str
    """Passes of the same net share its weights."""
    widths: tuple[int, ...]
    rows: int
    back: bool = True
    """Whether the input needs a gradient."""


def train(calls: Sequence[NetPass]) -> Iterator[None]:
    """Compute a step's products and the optimizer's step, for each `next`, without end."""
    shapes = {
        (call.net, at): (b, a) for call in calls for at, (a, b) in enumerate(pairwise(call.widths))
    }
    weights = {key: torch.randn(shape) * 0.01 for key, shape in shapes.items()}
    biases = {key: torch.zeros(shape[0]) for key, shape in shapes.items()}
    for each in (*weights.values(), *biases.values()):
        each.grad = torch.zeros_like(each)
    optimizer = torch.optim.AdamW([*weights.values(), *biases.values()], lr=1e-6, fused=True)
    signals = [[torch.randn(call.rows, width) for width in call.widths] for call in calls]
    returned = [[torch.randn(call.rows, width) for width in call.widths] for call in calls]
    while True:
        for call, x, back in zip(calls, signals, returned, strict=True):
            for at in range(len(call.widths) - 1):
                _products(weights[call.net, at], x, back, at, at > 0 or call.back)
        optimizer.step()
        yield


def _products(
    weight: Tensor, x: Sequence[Tensor], back: Sequence[Tensor], at: int, below: bool
) -> None:
    """Compute the output, the weight's gradient and, if needed, the input's gradient."""
    torch.mm(x[at], weight.T, out=x[at + 1])
    assert weight.grad is not None
    torch.mm(back[at + 1].T, x[at], out=weight.grad)
    if below:
        torch.mm(back[at + 1], weight, out=back[at])
