"""Small nets of one shape, of several parties, in one call: their weights stacked on the way.

For small nets the calls cost more than the arithmetic. Every party keeps its own weights; they are
stacked for the call, and their gradients come back to each. Rows are party after party.
"""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from xvfl.nets.row_wise import hooked, row_wise
from xvfl.nets.stacked import rebuilt

MOST_WEIGHTS = 1 << 12
"""Of a net. Above, copying weights costs more than the calls it saves."""


class JoinedLinear(nn.Module):
    """The linear layers of several parties, each on its own rows."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__()
        self._layers = tuple(layers)

    def forward(self, x: Tensor) -> Tensor:
        """Map (k·B, fan in) to (k·B, fan out)."""
        weight = torch.stack([layer.weight for layer in self._layers])
        bias = torch.stack([layer.bias for layer in self._layers])
        rows = x.view(len(self._layers), -1, x.shape[-1])
        out = torch.baddbmm(bias.unsqueeze(1), rows, weight.transpose(1, 2))
        return out.view(len(x), -1)


def join(nets: Sequence[nn.Module]) -> nn.Module | None:
    """Make one net of several, or None where that does not pay or cannot be."""
    first = nets[0]
    weights = [weight for weight in first.parameters()]
    if len(nets) == 1 or not weights or sum(each.numel() for each in weights) > MOST_WEIGHTS:
        return None
    if not all(row_wise(net) and _plain(net) and _shape(net) == _shape(first) for net in nets):
        return None
    return rebuilt(
        nets, {nn.Linear: lambda layers: JoinedLinear(cast(Sequence[nn.Linear], layers))}
    )


def _plain(net: nn.Module) -> bool:
    """Say that all weights of a net are in linear layers with a bias, on a CPU, without hooks."""
    leaves = [each for each in net.modules() if list(each.parameters(recurse=False))]
    linear = all(type(each) is nn.Linear and each.bias is not None for each in leaves)
    on_cpu = all(weight.device.type == "cpu" for weight in net.parameters())
    return linear and on_cpu and not hooked(net)


def _shape(net: nn.Module) -> tuple[object, ...]:
    """Say what two nets must have in common to be one."""
    inner = [(name, type(module), module.extra_repr()) for name, module in net.named_modules()]
    return (*inner, *((weight.shape, weight.dtype) for weight in net.parameters()))
