"""Holders: an optimizer of their own or a shared one, the same weights either way."""

import copy

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW

from tests.processes import run_python
from xvfl.config import TrainConfig
from xvfl.training.optimizer import (
    OptimizedNet,
    WeightUpdate,
    apply_update,
    build_optimizer,
)


@pytest.mark.parametrize("kind", ["adam", "adamw", "sgd"])
def test_a_step_is_torchs_own_bit_for_bit(kind: str) -> None:
    torch.manual_seed(0)
    net, config = nn.Linear(3, 2), TrainConfig(optimizer=kind, learning_rate=2e-3)  # type: ignore[arg-type]
    twin = copy.deepcopy(net)
    ours = build_optimizer([net], config)
    more = {"momentum": config.momentum} if kind == "sgd" else {"fused": True}
    theirs = {"adam": Adam, "adamw": AdamW, "sgd": SGD}[kind](
        twin.parameters(), config.learning_rate, weight_decay=config.weight_decay, **more
    )
    for at in range(4):
        for each in (net, twin):
            x = torch.randn(5, 3, generator=torch.Generator().manual_seed(at))
            each.zero_grad()
            each(x).square().sum().backward()
        if at == 2:
            net.bias.grad = twin.bias.grad = None
        ours.step()
        theirs.step()
        assert torch.equal(net.weight, twin.weight) and torch.equal(net.bias, twin.bias)


def test_holders_that_share_an_optimiser_keep_and_restore_their_own_part() -> None:
    torch.manual_seed(0)
    nets, config = [nn.Linear(2, 2), nn.Linear(2, 2)], TrainConfig(learning_rate=2e-3)

    def begin(nets: list[nn.Linear]) -> list[OptimizedNet]:
        shared = build_optimizer(nets, config)
        return [OptimizedNet(net, config, shared) for net in nets]

    def learn(holders: list[OptimizedNet]) -> None:
        for holder in holders:
            holder.net(torch.ones(1, 2)).square().sum().backward()
        apply_update(holders[0].optimizer, WeightUpdate("step", 0.1))

    holders = begin(nets)
    learn(holders)
    kept = [
        {key: v.clone() for key, v in holder.state_tensors(name).items()}
        for holder, name in zip(holders, "ab", strict=True)
    ]
    again = begin([nn.Linear(2, 2), nn.Linear(2, 2)])
    for holder, name, state in zip(again, "ab", kept, strict=True):
        holder.load_state_tensors(name, state)
    learn(holders)
    learn(again)
    for one, other in zip(holders, again, strict=True):
        assert torch.equal(one.net.weight, other.net.weight)  # type: ignore[arg-type]
        assert one.net.weight.grad is None


def test_what_is_restored_lies_in_memory_as_the_weights_do() -> None:
    torch.manual_seed(0)
    x, config = torch.rand(2, 4, 5, 5), TrainConfig(learning_rate=2e-3)

    def begin() -> OptimizedNet:
        torch.manual_seed(1)
        net = nn.Conv2d(4, 8, 3)
        net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return OptimizedNet(net, config)

    def learn(holder: OptimizedNet) -> None:
        holder.net(x).square().mean().backward()
        holder.update(WeightUpdate("step", 0.1))

    whole, parts = begin(), begin()
    learn(whole)
    learn(parts)
    saved = {key: value.contiguous() for key, value in parts.state_tensors("left").items()}
    again = begin()
    again.load_state_tensors("left", saved)
    learn(whole)
    learn(again)
    torch.testing.assert_close(again.net.state_dict(), whole.net.state_dict())
    weight = again.weights[0]
    assert again.optimizer.state[weight]["exp_avg"].stride() == weight.stride()


IMPORTS = """
import sys, torch
from xvfl.config import TrainConfig
from xvfl.training.optimizer import OptimizedNet, WeightUpdate
made = OptimizedNet(torch.nn.Linear(2, 1), TrainConfig(learning_rate=2e-3))
for _ in range(2):
    made.net(torch.ones(3, 2)).sum().backward()
    made.update(WeightUpdate("step", 0.1))
made.load_state_tensors("net", made.state_tensors("net"))
assert "torch._dynamo" not in sys.modules
"""


@pytest.mark.slow
def test_training_does_not_import_the_compiler() -> None:
    """It takes as long as importing torch itself, in every process that trains."""
    done = run_python("-c", IMPORTS)
    assert done.returncode == 0, done.stderr
