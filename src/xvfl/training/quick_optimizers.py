"""torch's optimizers without what costs time where nets are small.

torch imports its compiler, which takes as long as importing torch, to exclude these methods from
compilation; nothing is compiled here.
"""

import inspect
from collections.abc import MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import LBFGS, Adam, Optimizer
from torch.optim.adam import adam


class QuickOptimizer(Optimizer):
    """An optimizer that does not import torch's compiler."""

    add_param_group = inspect.unwrap(Optimizer.add_param_group)
    zero_grad = inspect.unwrap(Optimizer.zero_grad)
    state_dict = inspect.unwrap(Optimizer.state_dict)
    load_state_dict = inspect.unwrap(Optimizer.load_state_dict)


class QuickAdam(QuickOptimizer, Adam):
    """torch's Adam, whose fused update is called directly."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update the weights that have a gradient."""
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            if weights:
                adam_step(weights, self.state, group)


class QuickLBFGS(QuickOptimizer, LBFGS):
    """torch's L-BFGS."""


def adam_step(
    weights: Sequence[Tensor],
    state: MutableMapping[Tensor, Any],
    group: dict[str, Any],
) -> None:
    """Update weights with Adam or AdamW, as the options of their group say, in one fused call."""
    for weight in weights:
        if not state.get(weight):
            state[weight] = {
                "step": torch.zeros((), device=weight.device),
                "exp_avg": torch.zeros_like(weight),
                "exp_avg_sq": torch.zeros_like(weight),
            }
    slots = [state[weight] for weight in weights]
    beta1, beta2 = group["betas"]
    adam(
        list(weights),
        [weight.grad for weight in weights if weight.grad is not None],
        [slot["exp_avg"] for slot in slots],
        [slot["exp_avg_sq"] for slot in slots],
        [],
        [slot["step"] for slot in slots],
        fused=True,
        capturable=weights[0].is_cuda,
        decoupled_weight_decay=group["decoupled_weight_decay"],
        amsgrad=False,
        beta1=beta1,
        beta2=beta2,
        lr=group["lr"],
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        maximize=False,
    )
