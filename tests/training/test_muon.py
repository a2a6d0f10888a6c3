"""Muon: orthogonal steps for matrices, AdamW for other weights; as torch's own for one net."""

import copy

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from xvfl.config import TrainConfig
from xvfl.nets.mlp import mlp
from xvfl.nets.stacked import stack
from xvfl.training import muon
from xvfl.training.optimizer import OptimizedNet, WeightUpdate, build_optimizer


def slow_twin(X: Tensor) -> Tensor:
    """Iterate on the matrix itself, as the paper does."""
    a, b, c = muon.COEFFICIENTS
    X = X / X.norm()
    for _ in range(muon.ITERATIONS):
        A = X @ X.T
        X = a * X + (b * A + c * A @ A) @ X
    return X


def test_matrices_are_orthogonalized_as_one_by_one() -> None:
    torch.manual_seed(0)
    shapes = [(3, 8, 8), (2, 8, 30), (1, 30, 8), (3, 64, 300), (2, 64, 46), (1, 8, 12)]
    matrices = [torch.randn(shape) for shape in shapes]
    for X, ours in zip(matrices, muon.orthogonalize(matrices), strict=True):
        expected = torch.stack([slow_twin(each) for each in X])
        torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-4)
        assert torch.linalg.svdvals(ours).max() < 1.3, "no direction is longer than the others"


def test_a_step_is_that_of_torchs_muon_and_adamw() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 2))
    twin = copy.deepcopy(net)
    config = TrainConfig(optimizer="muon", learning_rate=0.01, weight_decay=0.0)
    ours = build_optimizer([net], config)
    matrix, *others = twin.parameters()
    # torch's scale is 0.2, and it iterates in bfloat16.
    rate = config.learning_rate * muon.SCALE / 0.2
    theirs = [
        torch.optim.Muon(
            [matrix], rate, 0.0, ns_steps=muon.ITERATIONS, adjust_lr_fn="match_rms_adamw"
        ),
        AdamW(others, config.learning_rate, weight_decay=0.0, fused=True),
    ]
    before = net[0].weight.detach().clone()
    for at in range(4):
        for each in (net, twin):
            x = torch.randn(32, 20, generator=torch.Generator().manual_seed(at))
            each.zero_grad()
            each(x).square().sum().backward()
        ours.step()
        for optimizer in theirs:
            optimizer.step()
    moved = (net[0].weight - before).norm()
    assert (net[0].weight - matrix).norm() < 0.05 * moved
    assert moved > 0.1
    torch.testing.assert_close(net[2].weight, twin[2].weight, rtol=1e-2, atol=1e-3)


def test_stacked_nets_step_as_each_alone() -> None:
    config = TrainConfig(optimizer="muon", learning_rate=0.01)
    torch.manual_seed(0)
    alone = [mlp([12, 16, 9]) for _ in range(3)]
    together = stack([copy.deepcopy(each) for each in alone])
    x = torch.randn(3, 5, 12)
    holders = [OptimizedNet(each, config) for each in alone]
    stacked = OptimizedNet(together, config)
    for _ in range(3):
        for rows, holder in zip(x, holders, strict=True):
            holder.net(rows).square().sum().backward()
            holder.update(WeightUpdate("step", 0.01))
        together(x.flatten(0, 1)).square().sum().backward()
        stacked.update(WeightUpdate("step", 0.01))
    for name, weight in together.named_parameters():
        expected = torch.stack([each.get_parameter(name) for each in alone])
        torch.testing.assert_close(weight, expected, rtol=1e-4, atol=1e-5)


def test_a_restored_net_goes_on_as_before() -> None:
    config, x = TrainConfig(optimizer="muon", learning_rate=0.01), torch.randn(6, 12)

    def begin() -> OptimizedNet:
        torch.manual_seed(1)
        return OptimizedNet(mlp([12, 10, 2]), config)

    def learn(holder: OptimizedNet) -> None:
        holder.net(x).square().sum().backward()
        holder.update(WeightUpdate("step", 0.01))

    whole, parts, again = begin(), begin(), begin()
    for holder in (whole, parts, whole):
        learn(holder)
    again.load_state_tensors("left", parts.state_tensors("left"))
    learn(again)
    torch.testing.assert_close(again.net.state_dict(), whole.net.state_dict(), rtol=0, atol=0)


def test_weights_without_a_gradient_stay() -> None:
    net = mlp([12, 10, 2])
    before = copy.deepcopy(net.state_dict())
    optimizer = build_optimizer([net], TrainConfig(optimizer="muon", learning_rate=0.01))
    optimizer.step()
    torch.testing.assert_close(net.state_dict(), before, rtol=0, atol=0)
