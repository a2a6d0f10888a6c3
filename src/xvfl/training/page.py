"""PAGE, the variance-reduced update of the paper (eq. pageupdate), as a torch optimizer.

Z. Li, H. Bao, X. Zhang, P. Richtárik. PAGE: a simple and optimal probabilistic gradient
estimator for nonconvex optimization. ICML 2021.

Every party and the coordinator have their own `Page`. The coordinator samples one coin per step and
sends the outcome with the update:

    with probability p:   backward on b rows at θ^t; refresh(); step()
    otherwise:            backward on b' rows at θ^t; look_back();
                          backward on the same rows at θ^{t-1}; correct(); step()
The first step must be a refresh.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer


@dataclass(frozen=True)
class PagePlan:
    """Batch sizes and coin of PAGE: b rows with probability p, else twice b' rows."""

    b: int
    b_small: int
    p: float

    @classmethod
    def default(cls, b: int, b_small: int | None = None, p: float | None = None) -> "PagePlan":
        """Fill in b' = ⌈√b⌉ and p = b'/(b + b')."""
        small = b_small if b_small is not None else math.ceil(math.sqrt(b))
        return cls(b, small, p if p is not None else small / (b + small))

    @property
    def gradients_per_step(self) -> float:
        """Expected gradient evaluations of a step, pb + 2(1-p)b'."""
        return self.p * self.b + 2 * (1 - self.p) * self.b_small

    def largest_step_size(self, smoothness: float) -> float:
        """Return the step size bound of the convergence proof, 1/(β(1 + √((1-p)/(p b')))).

        With the default p, the root is √b/b'.
        """
        return 1 / (smoothness * (1 + math.sqrt((1 - self.p) / (self.p * self.b_small))))


class Page(Optimizer):
    """Store θ^{t-1} and the estimator g; the module's docstring has the order of calls."""

    def __init__(self, params: Iterable[Tensor], lr: float, weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})
        for parameter in self._parameters():
            self.state[parameter] = {
                "estimate": torch.zeros_like(parameter),
                "previous": parameter.detach().clone(),
                "held": torch.zeros_like(parameter),
            }

        """Whether θ^{t-1} is loaded."""

    def _parameters(self) -> list[Tensor]:
        return [parameter for group in self.param_groups for parameter in group["params"]]

    @torch.no_grad()
    def refresh(self) -> None:
        """Take the gradient of this backward pass as the estimator."""
        for parameter in self._parameters():
            _store_gradient(parameter, self.state[parameter]["estimate"])

    @torch.no_grad()
    def look_back(self) -> None:
        """Store the gradient at θ^t and load θ^{t-1} for a second backward pass."""
        for parameter in self._parameters():
            state = self.state[parameter]
            _store_gradient(parameter, state["held"])
            _swap(parameter, state["previous"])
        self.zero_grad()

    @torch.no_grad()
    def correct(self) -> None:
        """Add the difference of the two gradients to the estimator and load θ^t again."""
        for parameter in self._parameters():
            state = self.state[parameter]
            state["estimate"].add_(state["held"])
            if parameter.grad is not None:
                state["estimate"].sub_(parameter.grad)
            _swap(parameter, state["previous"])

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Store θ^t and move to θ^{t+1} = θ^t - η g."""
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state["previous"].copy_(parameter)
                update = state["estimate"]
                if group["weight_decay"]:
                    update = update.add(parameter, alpha=group["weight_decay"])
                parameter.add_(update, alpha=-group["lr"])


def _store_gradient(parameter: Tensor, target: Tensor) -> None:
    if parameter.grad is None:
        target.zero_()
    else:
        target.copy_(parameter.grad)


def _swap(a: Tensor, b: Tensor) -> None:
    copy = a.clone()
    a.copy_(b)
    b.copy_(copy)
