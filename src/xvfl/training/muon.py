"""Muon: steps along the orthogonalized momentum of matrices, and AdamW for all other weights.

K. Jordan et al. Muon: an optimizer for hidden layers in neural networks. 2024. The length of a step
is adapted to that of AdamW, as in J. Liu et al., Muon is scalable for LLM training, 2025.
Shapes: S matrices of the same shape, r rows, c columns.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from xvfl.nets.stacked import StackedLinear
from xvfl.training.quick_optimizers import QuickOptimizer, adam_step

MOMENTUM = 0.95
SCALE = 0.4
"""Root mean square of a step's entries at learning rate 1, if the matrix has full rank."""
ITERATIONS = 3
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the polynomial that moves singular values towards 1 (Jordan et al.)."""
MIN_SIDE = 8
"""Fewest rows and columns of a matrix; others, such as a head's outputs, take AdamW steps."""


def weight_matrices(nets: Iterable[nn.Module]) -> list[nn.Parameter]:
    """List the weights of linear layers, also stacked, of at least `MIN_SIDE` rows and columns."""
    layers = [
        each
        for net in nets
        for each in net.modules()
        if isinstance(each, nn.Linear | StackedLinear)
    ]
    weights = [layer.weight for layer in layers if layer.weight.requires_grad]
    return [weight for weight in weights if min(weight.shape[-2:]) >= MIN_SIDE]


def orthogonalize(X: Tensor) -> Tensor:
    """Move the singular values of matrices towards 1 by Newton–Schulz iterations. (S, r, c)

    The iterations X ← (aI + bG + cG²) X with G = X Xᵀ are computed on G, which is small if one side
    of the matrices is, and applied to X once.
    """
    if X.shape[1] > X.shape[2]:
        return orthogonalize(X.mT).mT
    a, b, c = COEFFICIENTS
    X = X / (torch.linalg.vector_norm(X, dim=(1, 2), keepdim=True) + 1e-7)
    eye = torch.eye(X.shape[1], dtype=X.dtype, device=X.device).expand(len(X), -1, -1)
    G = torch.bmm(X, X.mT)
    product = eye
    for iteration in range(ITERATIONS):
        P = torch.baddbmm(a * eye + b * G, G, G, alpha=c)
        product = torch.bmm(P, product) if iteration else P
        if iteration + 1 < ITERATIONS:
            G = torch.bmm(torch.bmm(P, G), P)
    return torch.bmm(product, X)


class Muon(QuickOptimizer):
    """Muon for weight matrices, AdamW for all other weights.

    Parameters
    ----------
    weights : sequence of Parameter
        All weights.
    matrices : sequence of Parameter
        Those of them that are matrices, (r, c) or stacked (S, r, c).
    lr, weight_decay : float
        Learning rate and decoupled weight decay of both kinds.
    """

    def __init__(
        self,
        weights: Sequence[nn.Parameter],
        matrices: Sequence[nn.Parameter],
        lr: float,
        weight_decay: float,
    ) -> None:
        chosen = set(matrices)
        groups = [
            {"params": [each for each in weights if each not in chosen], "orthogonal": False},
            {"params": list(matrices), "orthogonal": True},
        ]
        super().__init__(
            [group for group in groups if group["params"]],
            {
                "lr": lr,
                "weight_decay": weight_decay,
                "betas": (0.9, 0.999),
                "eps": 1e-8,
                "decoupled_weight_decay": True,
            },
        )

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update all weights that have a gradient."""
        for group in self.param_groups:
            weights = [each for each in group["params"] if each.grad is not None]
            if group["orthogonal"]:
                self._step_matrices(weights, group)
            elif weights:
                adam_step(weights, self.state, group)

    def _step_matrices(self, weights: Sequence[Tensor], group: dict[str, Any]) -> None:
        by_shape: dict[tuple[int, ...], list[Tensor]] = {}
        for weight in weights:
            by_shape.setdefault(tuple(weight.shape[-2:]), []).append(weight)
        for (rows, columns), same in by_shape.items():
            directions = [self._direction(weight).view(-1, rows, columns) for weight in same]
            sizes = [len(each) for each in directions]
            steps = torch.split(orthogonalize(torch.cat(directions)), sizes)
            length = SCALE * math.sqrt(max(rows, columns))
            for weight, step in zip(same, steps, strict=True):
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.sub_((group["lr"] * length) * step.view_as(weight))

    def _direction(self, weight: Tensor) -> Tensor:
        """Update the momentum of a matrix and look ahead (Nesterov)."""
        assert weight.grad is not None
        slots = self.state[weight]
        if not slots:
            slots["momentum"] = torch.zeros_like(weight)
        momentum: Tensor = slots["momentum"].lerp_(weight.grad, 1 - MOMENTUM)
        return weight.grad.lerp(momentum, MOMENTUM)
