"""Grad-CAM: the image regions that a decision depends on.

R. Selvaraju et al. Grad-CAM: visual explanations from deep networks via gradient-based
localization. ICCV 2017.
Shapes: B rows, c channels, h × w positions of a feature map.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn


def grad_cam(watched: Sequence[nn.Module], score: Callable[[], Tensor]) -> list[Tensor | None]:
    """Return the map ReLU(Σ_c α_c A_c) of each watched module for the score (B,). (B, h, w)

    α_c is the mean over positions of the score's gradient. A module that did not run has no map; of
    one that ran several times the last features count.
    """
    with torch.enable_grad(), _watch(watched) as features:
        total = score().sum()
    ran = [each for each in features if each is not None]
    slopes = iter(torch.autograd.grad(total, ran, allow_unused=True))
    return [None if each is None else _map(each, next(slopes)) for each in features]


def _map(features: Tensor, slope: Tensor | None) -> Tensor:
    if slope is None:
        return torch.zeros_like(features[:, 0])
    return (slope.mean((2, 3), keepdim=True) * features).sum(1).relu().detach()


@contextmanager
def _watch(parts: Sequence[nn.Module]) -> Iterator[list[Tensor | None]]:
    """Record the outputs of modules."""
    features: list[Tensor | None] = [None] * len(parts)

    def catch(at: int) -> Callable[[nn.Module, object, Tensor], None]:
        def hook(_part: nn.Module, _given: object, out: Tensor) -> None:
            features[at] = out

        return hook

    handles = [part.register_forward_hook(catch(at)) for at, part in enumerate(parts)]
    try:
        yield features
    finally:
        for handle in handles:
            handle.remove()
