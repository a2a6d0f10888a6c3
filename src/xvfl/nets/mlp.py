"""Multilayer perceptrons for tables and heads."""

from collections.abc import Sequence
from itertools import pairwise
from typing import cast

from torch import Tensor, nn


class InputLinear(nn.Linear):
    """A linear layer of the features of rows; stacked members can take the same rows."""


def mlp(widths: Sequence[int], first: type[nn.Linear] = nn.Linear) -> nn.Sequential:
    """Build linear layers with ReLU between them, without batch normalization.

    Layers before a ReLU use He initialization (K. He et al. 2015): with PyTorch's default,
    activations shrink from layer to layer, and deep heads hardly train.
    """
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(widths):
        linear = (nn.Linear if layers else first)(fan_in, fan_out)
        nn.init.kaiming_uniform_(linear.weight, nonlinearity="relu")
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.ReLU()]
    layers[-2] = nn.Linear(widths[-2], widths[-1])
    return nn.Sequential(*layers[:-1])


class LinearSkip(nn.Module):
    """A net plus a linear map of its input; a rank below both widths makes it two layers."""

    def __init__(self, net: nn.Module, fan_in: int, fan_out: int, rank: int) -> None:
        super().__init__()
        self.net = net
        self.linear: nn.Module = InputLinear(fan_in, fan_out)
        if rank < min(fan_in, fan_out):
            self.linear = nn.Sequential(InputLinear(fan_in, rank), nn.Linear(rank, fan_out))

    def forward(self, x: Tensor) -> Tensor:
        """Add both outputs. (B, fan out)"""
        return cast(Tensor, self.net(x) + self.linear(x))
