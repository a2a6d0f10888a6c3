"""Stacked layers with ReLU between them, with a backward pass of its own on a CPU.

The steps of small nets on a CPU are bound by the number of operations and of passes over memory.
The plain modules are the slow twin, and run on a GPU, in exports and where no gradient is needed.
Shapes: N stacked nets, B rows of each, n inputs of a layer, m outputs.
"""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, cast

import torch
from torch import Tensor, nn

threshold_backward = torch.ops.aten.threshold_backward.grad_input


class StackedMLP(nn.Sequential):
    """Stacked linear layers with ReLU between them."""

    def forward(self, input: Tensor) -> Tensor:
        """Apply the layers to (N·B, n), or to rows that all nets take, (1, B, n). (N·B, m)"""
        if input.is_cuda or not torch.is_grad_enabled() or torch.onnx.is_in_onnx_export():
            return self._plain(input)
        layers = list(islice(self, 0, None, 2))
        nets = len(cast(Tensor, layers[0].weight))
        shared = input.dim() == 3
        if shared and len(input) > 1:
            return self._plain(input)
        rows = input if shared else input.view(nets, -1, input.shape[-1])
        weights = [cast(Tensor, layer.weight) for layer in layers]
        biases = [cast(Tensor, layer.bias) for layer in layers]
        apply = cast(Callable[..., Tensor], _StackedMLP.apply)
        return apply(rows, *weights, *biases).flatten(0, 1)

    def _plain(self, input: Tensor) -> Tensor:
        return cast(Tensor, super().forward(input))  # type: ignore[no-untyped-call]


class _StackedMLP(torch.autograd.Function):
    """Layers h ← ReLU(h Wᵀ + b), the last one without ReLU."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *parameters: Tensor) -> Tensor:
        """Apply the layers to (N, B, n), or to rows that all nets take, (1, B, n). (N, B, m)"""
        count = len(parameters) // 2
        weights, biases = parameters[:count], parameters[count:]
        inputs = [x]
        for at, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            h = _linear(inputs[-1], weight, bias)
            if at + 1 < count:
                inputs.append(h.clamp_(min=0))
        ctx.save_for_backward(*inputs, *weights)
        return h

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the gradients of the input, the weights and the biases."""
        saved: Sequence[Tensor] = ctx.saved_tensors
        count = len(saved) // 2
        inputs, weights = saved[:count], saved[count:]
        of_weights, of_biases = [], []
        (g,) = gradients
        of_input: Tensor | None = None
        for at in reversed(range(count)):
            h, weight = inputs[at], weights[at]
            of_weights.append(_weight_gradient(g, h))
            of_biases.append(g.sum(1))
            if at:
                g = torch.bmm(g, weight)
                threshold_backward(g, h, 0, grad_input=g)
            elif ctx.needs_input_grad[0]:
                of_input = _input_gradient(g, weight, shared=len(h) < len(weight))
        return of_input, *reversed(of_weights), *reversed(of_biases)


def _linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute x Wᵀ + b of (N, B, n), or of rows that all nets take. (N, B, m)"""
    if len(x) == len(weight):
        return torch.baddbmm(bias.unsqueeze(1), x, weight.mT)
    nets, outputs, inputs = weight.shape
    # One product for all nets.
    out = torch.addmm(bias.view(-1), x[0], weight.view(-1, inputs).T)
    return out.view(-1, nets, outputs).transpose(0, 1)


def _weight_gradient(g: Tensor, x: Tensor) -> Tensor:
    """Compute gᵀ x of g (N, B, m) and x (N, B, n), or of rows that all nets take. (N, m, n)"""
    if len(x) == len(g):
        return torch.bmm(g.mT, x)
    out = g.new_empty(len(g), g.shape[2], x.shape[2])
    for one, of_net in zip(g, out, strict=True):
        torch.mm(one.T, x[0], out=of_net)
    return out


def _input_gradient(g: Tensor, weight: Tensor, shared: bool) -> Tensor:
    """Compute g W of g (N, B, m), summed over the nets if they share their input. (N, B, n)"""
    if not shared:
        return torch.bmm(g, weight)
    total = torch.mm(g[0], weight[0])
    for one, of_net in zip(g[1:], weight[1:], strict=True):
        total.addmm_(one, of_net)
    return total.unsqueeze(0)
