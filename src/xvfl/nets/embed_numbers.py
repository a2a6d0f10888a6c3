"""The embedding of numbers with a backward pass of its own, for training on a CPU.

`xvfl.nets.numbers` computes the same function with torch's operators, and defines the shapes.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor


@dataclass(frozen=True)
class Lookup:
    """Which row of some weights each number takes, and times what. Flattened (R·n·B,)"""

    size: int
    """Rows of weights of each number."""
    at: Tensor
    """Among those of all numbers."""
    factor: Tensor
    slope: Tensor | None = None
    """Derivative of the factor by the number; None = 0."""


def embed_numbers(
    values: Tensor,
    frequencies: Tensor,
    weight: Tensor,
    bias: Tensor,
    bins: Lookup | None,
    flags: Lookup | None,
) -> Tensor:
    """Compute ReLU(W [sin(2πcx), cos(2πcx), bins(x), flags(x)] + b) of (R, n, B). (R, n, B, w)"""
    apply = cast(Callable[..., Tensor], _EmbedNumbers.apply)
    return apply(values, frequencies, weight, bias, bins, flags)


class _EmbedNumbers(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        values: Tensor,
        frequencies: Tensor,
        weight: Tensor,
        bias: Tensor,
        bins: Lookup | None,
        flags: Lookup | None,
    ) -> Tensor:
        """Embed the numbers."""
        nets, count, _, width = weight.shape
        parts = _split(weight, frequencies, bins, flags)
        angles = values.unsqueeze(-1) * (2 * math.pi * frequencies).unsqueeze(2)
        waves = torch.cat([angles.sin(), angles.cos()], -1).flatten(0, 1)
        out = torch.baddbmm(bias.view(-1, 1, width), waves, parts[0])
        flat = out.view(-1, width)
        slopes = None
        if bins is not None:
            # The bins below that of a number add up to a number of their own.
            below = parts[1].cumsum(1) - parts[1]
            slopes = parts[1].reshape(-1, width).index_select(0, bins.at)
            flat += below.view(-1, width).index_select(0, bins.at)
            flat.addcmul_(bins.factor.unsqueeze(1), slopes)
        if flags is not None:
            rows = parts[2].reshape(-1, width).index_select(0, flags.at)
            flat.addcmul_(flags.factor.unsqueeze(1), rows)
        out = out.clamp_(min=0).view(nets, count, -1, width)
        ctx.save_for_backward(values, frequencies, weight, waves, out, slopes)
        ctx.bins, ctx.flags = bins, flags
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the gradients of values, frequencies, weights and biases."""
        values, frequencies, weight, waves, out, slopes = ctx.saved_tensors
        bins, flags = ctx.bins, ctx.flags
        width = weight.shape[-1]
        parts = _split(weight, frequencies, bins, flags)
        g = gradients[0].contiguous().view(len(waves), -1, width)
        g = torch.ops.aten.threshold_backward(g, out.view(g.shape), 0)
        flat = g.view(-1, width)
        of_weight = [torch.bmm(waves.mT, g)]
        by_angle = _angle_gradient(torch.bmm(g, parts[0].mT), waves).view(*values.shape, -1)
        of_frequencies = 2 * math.pi * (by_angle * values.unsqueeze(-1)).sum(2)
        of_values: Tensor | None = None
        if ctx.needs_input_grad[0]:
            of_values = 2 * math.pi * (by_angle * frequencies.unsqueeze(2)).sum(-1)
        if bins is not None:
            below = _scatter(flat, bins, parts[1])
            inside = _scatter(flat * bins.factor.unsqueeze(1), bins, parts[1])
            above = below.sum(1, keepdim=True) - below.cumsum(1)
            of_weight.append(inside + above)
            if of_values is not None:
                by_row = (flat * slopes).sum(1) * bins.slope
                of_values += by_row.view(values.shape)
        if flags is not None:
            of_weight.append(_scatter(flat * flags.factor.unsqueeze(1), flags, parts[2]))
        return (
            of_values,
            of_frequencies,
            torch.cat(of_weight, 1).view(weight.shape),
            g.sum(1).view(*weight.shape[:2], 1, width),
            None,
            None,
        )


def _split(
    weight: Tensor, frequencies: Tensor, bins: Lookup | None, flags: Lookup | None
) -> tuple[Tensor, ...]:
    """Split the weights into those of waves, bins and flags. (R·n, 2F, K or S, w)"""
    sizes = [2 * frequencies.shape[-1], bins.size if bins else 0, flags.size if flags else 0]
    return torch.split(weight.flatten(0, 1), sizes, 1)


def _angle_gradient(g: Tensor, waves: Tensor) -> Tensor:
    """Compute the gradient of the angles from that of their sines and cosines. (R·n, B, F)"""
    of_sin, of_cos = g.chunk(2, -1)
    sin, cos = waves.chunk(2, -1)
    return of_sin * cos - of_cos * sin


def _scatter(rows: Tensor, lookup: Lookup, like: Tensor) -> Tensor:
    """Add up the gradients of looked-up rows. (R·n, K, w)"""
    total = rows.new_zeros(like.shape[0] * like.shape[1], like.shape[2])
    return total.index_add_(0, lookup.at, rows).view(like.shape)
