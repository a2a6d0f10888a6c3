"""Muon: steps along the orthogonalized momentum of matrices, and AdamW for all other weights.

K. Jordan et al. Muon: an optimizer for hidden layers in neural networks. 2024. The length of a step
is adapted to that of AdamW, as in J. Liu et al., Muon is scalable for LLM training, 2025.
Shapes: S stacked matrices, r rows, c columns.
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
TALL = 2
"""Matrices with more rows than this times their columns are transposed."""
TINY = 1e-14
MIN_SIDE = 8
"""Fewest rows and columns of a matrix; others, such as a head's outputs, take AdamW steps."""


def weight_matrices(nets: Iterable[nn.Module]) -> list[nn.Parameter]:
    """List the weights of linear layers, also stacked, of at least `MIN_SIDE` rows and columns."""
    layers = (
        each
        for net in nets
        for each in net.modules()
        if isinstance(each, nn.Linear | StackedLinear)
    )
    weights = (layer.weight for layer in layers if layer.weight.requires_grad)
    return [
        weight
        for weight in weights
        if isinstance(weight, nn.Parameter) and min(weight.shape[-2:]) >= MIN_SIDE
    ]


def orthogonalize(matrices: Sequence[Tensor]) -> list[Tensor]:
    """Move the singular values of matrices (S, r, c) of any shapes towards 1.

    The Newton–Schulz iterations X ← (aI + bG + cG²) X with G = X Xᵀ are computed on G, for all
    matrices with the same number of rows at once, and applied to X once.
    """
    wide = [_wide(each, each) for each in matrices]
    out = [torch.bmm(*each) for each in zip(_factors(wide), wide, strict=True)]
    return [_wide(each, like) for each, like in zip(out, matrices, strict=True)]


def _wide(matrix: Tensor, like: Tensor) -> Tensor:
    """Transpose a matrix if another one has many more rows than columns."""
    return matrix.mT if like.shape[1] > TALL * like.shape[2] else matrix


def _factors(wide: Sequence[Tensor]) -> list[Tensor]:
    """Compute what each matrix is multiplied by. (S, r, r) each"""
    factors: list[Tensor] = list(wide)
    for rows in {each.shape[1] for each in wide}:
        at = [place for place, each in enumerate(wide) if each.shape[1] == rows]
        G = torch.cat([torch.bmm(wide[place], wide[place].mT) for place in at])
        parts = torch.split(_polynomials(G), [len(wide[place]) for place in at])
        for place, factor in zip(at, parts, strict=True):
            factors[place] = factor
    return factors


def _polynomials(G: Tensor) -> Tensor:
    """Compute the product of the iterations' factors from the products X Xᵀ. (S, r, r)"""
    a, b, c = COEFFICIENTS
    squares = G.diagonal(dim1=1, dim2=2).sum(1).view(-1, 1, 1) + TINY
    G, product = G / squares, squares.rsqrt()
    for iteration in range(ITERATIONS):
        P = torch.baddbmm(G, G, G, beta=b, alpha=c)
        P.diagonal(dim1=1, dim2=2).add_(a)
        product = torch.bmm(P, product) if iteration else P * product
        if iteration + 1 < ITERATIONS:
            G = torch.bmm(torch.bmm(P, G), P)
    return product


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
            if weights and group["orthogonal"]:
                self._step_matrices(weights, group)
            elif weights:
                adam_step(weights, self.state, group)

    def _step_matrices(self, weights: list[Tensor], group: dict[str, Any]) -> None:
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        for weight in weights:
            if not self.state[weight]:
                self.state[weight]["momentum"] = torch.zeros_like(weight)
        momenta = [self.state[weight]["momentum"] for weight in weights]
        torch._foreach_lerp_(momenta, gradients, 1 - MOMENTUM)
        # Nesterov: look ahead. The gradients are used up.
        torch._foreach_lerp_(gradients, momenta, MOMENTUM)
        stacked = [each.view(-1, *each.shape[-2:]) for each in gradients]
        wide = [_wide(each, each) for each in stacked]
        torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        # The orthogonal matrices are added as they are computed: one pass over the weights.
        for weight, factor, X in zip(weights, _factors(wide), wide, strict=True):
            matrix = weight.view(-1, *weight.shape[-2:])
            length = SCALE * math.sqrt(max(weight.shape[-2:]))
            _wide(matrix, matrix).baddbmm_(factor * (-group["lr"] * length), X)
