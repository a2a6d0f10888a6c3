"""Nets of several runs as one net: stacked weights, and the rows of all runs in one batch.

A batch of R runs has R·B rows: the first B belong to run 0, and so on. Only layers with weights
depend on the run; all other modules work row by row and are unchanged. Members of a run can share
the layers in `SHARED`, which encode its rows once; their first own layer is an `InputLinear`.
Shapes: R runs, M members of a run, B rows.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from xvfl.nets.mlp import InputLinear
from xvfl.nets.numbers import NumberEmbeddings
from xvfl.nets.stacked_mlp import StackedMLP
from xvfl.nets.whitening import Whitening


class StackedLinear(nn.Module):
    """A linear layer of every run, each applied to its own rows."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.weight = _stack([layer.weight for layer in layers])
        self.bias = _stack([layer.bias for layer in layers])

    def forward(self, x: Tensor) -> Tensor:
        """Map (R·B, …, fan in) to (R·B, …, fan out)."""
        rows = x.reshape(len(self.weight), -1, x.shape[-1])
        out = torch.baddbmm(self.bias.unsqueeze(1), rows, self.weight.transpose(1, 2))
        return out.view(*x.shape[:-1], out.shape[-1])


class StackedInputLinear(StackedLinear):
    """The first own layer of every member; all members of a run can take the same rows."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (R·M·B, fan in), or the rows of R runs (R, B, fan in), to (R·M·B, fan out)."""
        if x.dim() < 3:
            return super().forward(x)
        runs, (nets, fan_out, fan_in) = len(x), self.weight.shape
        # One product for all members of a run.
        weight = self.weight.view(runs, -1, fan_in).transpose(1, 2)
        out = torch.baddbmm(self.bias.view(runs, 1, -1), x, weight)
        return out.view(*x.shape[:2], nets // runs, fan_out).transpose(1, 2).flatten(0, 2)


class StackedEmbedding(nn.Module):
    """An embedding table of every run, each used by its own rows."""

    def __init__(self, tables: Sequence[nn.Embedding]) -> None:
        super().__init__()
        self.weight = _stack([table.weight for table in tables])

    def forward(self, codes: Tensor) -> Tensor:
        """Look up the codes (R·B,). (R·B, width)"""
        runs, buckets, width = self.weight.shape
        first = torch.arange(runs, device=codes.device).unsqueeze(1) * buckets
        at = (codes.view(runs, -1) + first).flatten()
        return nn.functional.embedding(at, self.weight.view(runs * buckets, width))


STACKED: dict[type[nn.Module], Callable[[Sequence[Any]], nn.Module]] = {
    nn.Linear: StackedLinear,
    InputLinear: StackedInputLinear,
    nn.Embedding: StackedEmbedding,
    NumberEmbeddings: NumberEmbeddings.stack,
    Whitening: Whitening.stack,
}
"""The stacked layer for each type of layer with weights."""
SHARED = (nn.Embedding, NumberEmbeddings)
"""Types of layers that members of a run can share."""


def stack(nets: Sequence[nn.Module], sharing: int = 1) -> nn.Module:
    """Build one net from several nets of the same shape; a single net is returned unchanged.

    Of each `sharing` nets that follow each other, layers in `SHARED` are those of the first.
    """
    first = nets[0]
    if len(nets) == 1:
        return first
    if type(first) in STACKED:
        return STACKED[type(first)](nets[::sharing] if isinstance(first, SHARED) else nets)
    if next(first.parameters(recurse=False), None) is not None:
        raise TypeError(f"{type(first).__name__} cannot be stacked; train one run at a time")
    stacked = copy.copy(first)
    stacked._modules = {
        name: stack([cast(nn.Module, net._modules[name]) for net in nets], sharing)
        for name in first._modules
    }
    return StackedMLP(*stacked.children()) if _is_mlp(stacked) else stacked


def _is_mlp(net: nn.Module) -> bool:
    """Tell whether a net consists of stacked linear layers with ReLU between them."""
    layers = list(net.children()) if type(net) is nn.Sequential else []
    return len(layers) % 2 == 1 and all(
        isinstance(layer, nn.ReLU if at % 2 else StackedLinear) for at, layer in enumerate(layers)
    )


def _stack(weights: Sequence[Tensor]) -> nn.Parameter:
    return nn.Parameter(torch.stack([weight.detach() for weight in weights]))
