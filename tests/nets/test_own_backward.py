"""Backward passes written by hand equal those of torch's operators."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from xvfl.nets.mlp import InputLinear, mlp
from xvfl.nets.numbers import NumberEmbeddings
from xvfl.nets.stacked import stack
from xvfl.nets.stacked_mlp import StackedMLP
from xvfl.primitives.layout import Feature, Layout, NumberBins

NUMBERS = Layout(
    tuple(Feature(f"x{i}", "numeric", 1) for i in range(3)),
    None,
    (NumberBins((0.0, 0.1, 0.3, 1.0), (0.0,)), NumberBins(), NumberBins((0.0, 0.5, 1.0), (0.25,))),
)


def compare(net: nn.Module, x: Tensor, slow: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(1)
    results = []
    for function in (net, slow):
        own = x.clone().requires_grad_()
        net.zero_grad()
        out = function(own)
        out.backward(torch.linspace(-1, 1, out.numel()).view_as(out))
        results.append([out, own.grad, *(each.grad for each in net.parameters())])
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shared", [True, False])
def test_stacked_layers(shared: bool) -> None:
    torch.manual_seed(0)
    net = stack([mlp([10, 16, 12, 3], InputLinear) for _ in range(4)])
    assert type(net) is StackedMLP
    x = torch.randn(1, 7, 10) if shared else torch.randn(4 * 7, 10)
    compare(net, x, lambda own: nn.Sequential.forward(net, own))


@pytest.mark.parametrize("runs", [1, 2])
def test_embeddings_of_numbers(runs: int) -> None:
    torch.manual_seed(0)
    net = NumberEmbeddings.stack([NumberEmbeddings(NUMBERS, 4) for _ in range(runs)])
    x = torch.rand(40 * runs, 6)
    x[:10, 0], x[5:15, 2], x[20:25, 2] = 0.0, 0.5, 0.25
    x[:, 3:] = (x[:, 3:] > 0.2).float()

    def slow(own: Tensor) -> Tensor:
        values = own.index_select(-1, net.numbers).view(runs, -1, 3).transpose(1, 2)
        given = own.index_select(-1, net.flags).view(runs, -1, 3, 1)
        embedded = net._plain(values, False).transpose(1, 2) * given
        return torch.cat([own, embedded.reshape(len(own), -1)], -1)

    compare(net, x, slow)
