"""Multilayer perceptrons for tables and heads."""

from collections.abc import Sequence
from itertools import pairwise

from torch import nn


def mlp(widths: Sequence[int]) -> nn.Sequential:
    """Build linear layers with ReLU between them, without batch normalization.

    Layers before a ReLU use He initialization (K. He et al. 2015): with PyTorch's default,
    activations shrink from layer to layer, and deep heads hardly train.
    """
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(widths):
        linear = nn.Linear(fan_in, fan_out)
        nn.init.kaiming_uniform_(linear.weight, nonlinearity="relu")
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.ReLU()]
    layers[-2] = nn.Linear(widths[-2], widths[-1])
    return nn.Sequential(*layers[:-1])
