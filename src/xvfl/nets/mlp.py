"""Plain multilayer nets for tables and heads."""

from collections.abc import Sequence

from torch import nn


def mlp(widths: Sequence[int]) -> nn.Sequential:
    """Stack linear layers with SiLU between them; no normalisation over the batch."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in zip(widths, widths[1:], strict=False):
        layers += [nn.Linear(fan_in, fan_out), nn.SiLU()]
    return nn.Sequential(*layers[:-1])
