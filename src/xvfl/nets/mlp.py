"""Plain multilayer nets for tables and heads."""

from collections.abc import Sequence
from itertools import pairwise

from torch import nn


def mlp(widths: Sequence[int]) -> nn.Sequential:
    """Stack linear layers with ReLU between them; no normalization over the batch.

    Layers before a ReLU begin so that signals keep their size (K. He et al. 2015): with torch's own
    choice they fade, and deep heads hardly learn.
    """
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(widths):
        linear = nn.Linear(fan_in, fan_out)
        nn.init.kaiming_uniform_(linear.weight, nonlinearity="relu")
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.ReLU()]
    layers[-2] = nn.Linear(widths[-2], widths[-1])
    return nn.Sequential(*layers[:-1])
