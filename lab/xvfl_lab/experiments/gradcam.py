"""Grad-CAM: the image regions that a decision depends on.

R. Selvaraju et al. Grad-CAM: visual explanations from deep networks via gradient-based
localization. ICCV 2017.
Shapes: B rows, c channels, h × w positions of a feature map.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn


def grad_cam(watched: Sequence[nn.Module], score: Callable[[], Tensor]) -> list[Tensor | None]:
    """Return the map ReLU(Σ_c α_c A_c) of each watched module for the score (B,). (B, h, w)

    α_c is the mean over positions of the score's gradient. A module that did not run has no map; of
    one that ran several times the last features count.
    """
    features: dict[nn.Module, Tensor] = {}

    def record(part: nn.Module, _inputs: object, out: Tensor) -> None:
        features[part] = out

    handles = [part.register_forward_hook(record) for part in watched]
    try:
        with torch.enable_grad():
            total = score().sum()
    finally:
        for handle in handles:
            handle.remove()
    slopes = torch.autograd.grad(total, list(features.values()), allow_unused=True)
    maps = map(_map, features.values(), slopes)
    by_part = dict(zip(features, maps, strict=True))
    return [by_part.get(part) for part in watched]


def _map(features: Tensor, slope: Tensor | None) -> Tensor:
    if slope is None:
        return torch.zeros_like(features[:, 0])
    return (slope.mean((2, 3), keepdim=True) * features).sum(1).relu().detach()
