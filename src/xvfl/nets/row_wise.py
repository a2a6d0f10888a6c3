"""A net on the rows that somebody looks at, zeros for the others.

A loss needs some of a batch's (row, party) pairs alone. A net that works row by row may leave the
others out: nothing changes but the work. Where rows bear on each other (batch statistics, one
stream of dropout, stacked runs of equally many rows) or shapes must stay fixed (on a GPU, where
steps are captured and nobody waits for the device), every row is computed.
"""

from collections.abc import Callable

from torch import Tensor, nn

from xvfl.nets.completers import Completer, ImageTrunk, NoCompleter, TypedOutput
from xvfl.nets.concat import ConcatHead, ParallelBottoms
from xvfl.nets.norm import GroupNorm
from xvfl.nets.resnet import Block, ResidualBottom

ROW_WISE: frozenset[type[nn.Module]] = frozenset(
    (
        *(nn.Sequential, nn.ModuleList, nn.Identity, nn.Flatten),
        *(nn.Linear, nn.Embedding, nn.Conv2d, nn.GroupNorm, GroupNorm, nn.LayerNorm),
        *(nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Tanh),
        *(ConcatHead, ParallelBottoms, Block, ResidualBottom),
        *(Completer, ImageTrunk, NoCompleter, TypedOutput),
    )
)
"""Modules that give a row the same answer whatever rows are beside it."""


def row_wise(net: nn.Module) -> bool:
    """Say that a net is made of nothing but modules known to work row by row."""
    return all(type(module) in ROW_WISE for module in net.modules())


def hooked(net: nn.Module) -> bool:
    """Say that a net has hooks: they must be called as often as it is, and by it."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(each, kind) for each in net.modules() for kind in kinds)


def apply_to_rows(call: Callable[..., Tensor], wanted: Tensor | None, *inputs: Tensor) -> Tensor:
    """Apply a call to the rows that are wanted, zeros elsewhere; None = everywhere.

    `wanted` is bool, of any shape; each input has a row for each of its entries.
    """
    if wanted is None or wanted.device.type != "cpu":
        return call(*inputs)
    at = wanted.flatten().nonzero().squeeze(1)
    if len(at) == wanted.numel():
        return call(*inputs)
    made = call(*(x.index_select(0, at) for x in inputs))
    return made.new_zeros(wanted.numel(), *made.shape[1:]).index_copy(0, at, made)
