"""Apply a net only to the rows that are needed.

A loss needs only some of a batch's (row, party) pairs. A net that works row by row can skip the
others without changing the result. Every row is computed where rows affect each other (batch
statistics, dropout), where stacked nets need different rows, and on a GPU, where shapes must be
fixed.
"""

from collections.abc import Callable

from torch import Tensor, nn

from xvfl.nets.completers import (
    Completer,
    ImageFusion,
    ImageTrunk,
    NoCompleter,
    SeeingCompleter,
    TableFusion,
    TypedOutput,
)
from xvfl.nets.concat import AdaptedHead, ConcatHead, ParallelBottoms
from xvfl.nets.mlp import InputLinear, LinearSkip
from xvfl.nets.norm import GroupNorm
from xvfl.nets.numbers import NumberEmbeddings
from xvfl.nets.resnet import Block, ResidualBottom
from xvfl.nets.stacked import StackedEmbedding, StackedInputLinear, StackedLinear
from xvfl.nets.stacked_mlp import StackedMLP
from xvfl.nets.whitening import Whitening

ROW_WISE: frozenset[type[nn.Module]] = frozenset(
    (
        *(nn.Sequential, nn.ModuleList, nn.Identity, nn.Flatten),
        *(nn.Linear, nn.Embedding, nn.Conv2d, nn.GroupNorm, GroupNorm, nn.LayerNorm),
        *(nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Tanh),
        *(LinearSkip, AdaptedHead, ConcatHead, ParallelBottoms, Block, ResidualBottom),
        *(NumberEmbeddings, StackedEmbedding, StackedLinear, Whitening),
        *(InputLinear, StackedInputLinear, StackedMLP),
        *(SeeingCompleter, ImageFusion, TableFusion),
        *(Completer, ImageTrunk, NoCompleter, TypedOutput),
    )
)
"""Modules whose output for a row does not depend on other rows."""


def row_wise(net: nn.Module) -> bool:
    """Return whether a net consists only of modules that work row by row."""
    return all(type(module) in ROW_WISE for module in net.modules())


def has_hooks(net: nn.Module) -> bool:
    """Return whether a net has hooks, which must run in every call."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(each, kind) for each in net.modules() for kind in kinds)


def apply_to_rows(
    function: Callable[..., Tensor],
    needed: Tensor | None,
    *inputs: Tensor,
    stacked: int = 1,
    members: int = 1,
) -> Tensor:
    """Apply a function to the needed rows, with zeros elsewhere; None = all rows.

    `needed` is bool, of any shape; each input has one row for each of its entries. Rows are skipped
    if all `stacked` nets, whose rows follow each other, need the same ones. The function returns
    the rows of each net once for each of its `members`.
    """
    if needed is None or needed.device.type != "cpu":
        return function(*inputs)
    by_net = needed.reshape(stacked, -1)
    if bool(by_net[0].all()) or not bool((by_net == by_net[0]).all()):
        return function(*inputs)
    index = needed.flatten().nonzero().squeeze(1)
    out = function(*(x.index_select(0, index) for x in inputs))
    if members == 1:
        return out.new_zeros(needed.numel(), *out.shape[1:]).index_copy(0, index, out)
    rows, of_net = by_net.shape[1], by_net[0].nonzero().squeeze(1)
    by_member = out.view(stacked * members, -1, *out.shape[1:])
    spread = out.new_zeros(stacked * members, rows, *out.shape[1:])
    return spread.index_copy(1, of_net, by_member).flatten(0, 1)
