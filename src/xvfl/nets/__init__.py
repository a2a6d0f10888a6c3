"""The nets: bottoms f_i, heads h and completers XCom_i, with defaults by data kind."""

from collections.abc import Callable

from torch import nn

from xvfl.nets.completers import (
    Completer,
    ImageFusion,
    ImageTrunk,
    NoCompleter,
    SeeingCompleter,
    TableFusion,
)
from xvfl.nets.concat import AdaptedHead, ConcatHead, ParallelBottoms
from xvfl.nets.mlp import InputLinear, LinearSkip, mlp
from xvfl.nets.numbers import NumberEmbeddings
from xvfl.nets.resnet import ResidualBottom
from xvfl.primitives.layout import Layout

__all__ = [
    "AdaptedHead",
    "Completer",
    "ConcatHead",
    "LinearSkip",
    "NetOrBuilder",
    "NoCompleter",
    "ParallelBottoms",
    "ResidualBottom",
    "SeeingCompleter",
    "bottom",
    "completer",
    "head",
    "mlp",
]

NetOrBuilder = nn.Module | Callable[[Layout, int], nn.Module]
"""A custom net: a module, or a function of the party's layout and the embedding width d."""


def bottom(
    layout: Layout,
    d: int,
    hidden: int,
    blocks: int,
    channels: int = 32,
    number_dim: int = 0,
    skip_rank: int = 0,
) -> nn.Module:
    """Build the default f_i: three layers for tables, residual blocks for images.

    Its input is the encoded features, then one flag per raw feature (for images, one channel). With
    `number_dim` > 0, the numbers of a table also have embeddings of this width. With `skip_rank` >
    0, a linear map of this rank is added to the layers of a table.
    """
    if layout.image is not None:
        return ResidualBottom(layout.image[0] + 1, d, blocks, channels)
    width = layout.encoded + layout.raw
    if number_dim and layout.numbers:
        numbers = NumberEmbeddings(layout, number_dim)
        net = nn.Sequential(numbers, mlp([width + numbers.width, hidden, hidden, d], InputLinear))
    else:
        net = mlp([width, hidden, hidden, d], InputLinear)
    return LinearSkip(net, width, d, skip_rank) if skip_rank else net


def head(width: int, hidden: int, classes: int, image: bool) -> nn.Module:
    """Build the default h: three layers for tables, six for images."""
    return mlp([width, *[hidden] * (5 if image else 2), classes])


def completer(
    layout: Layout, d: int, hidden: int, channels: int = 32, sees_features: bool = False
) -> nn.Module:
    """Build the default XCom_i: a trunk by data kind, then outputs in each feature's range."""
    if sees_features and layout.image is not None:
        return SeeingCompleter(ImageFusion(d, layout.image, channels), layout)
    if sees_features:
        return SeeingCompleter(TableFusion(d, layout, hidden), layout)
    if layout.image is not None:
        return Completer(ImageTrunk(d, layout.image, 2 * channels), layout)
    return Completer(mlp([d, hidden, hidden, layout.encoded]), layout)
