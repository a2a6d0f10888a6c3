"""Random augmentations of images: crop, flip, colors, grayscale. Deterministic by their numbers.

Shapes: B images, C channels, H × W pixels.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

N_RANDOM = 10
"""Random numbers of an image."""
MIN_AREA = 0.25
"""Smallest area of a crop, as a share of the image."""
COLOR = 0.4
"""Largest change of brightness, contrast and saturation."""
GRAY_SHARE = 0.2


def augment(pixels: Tensor, observed: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Return augmented images and which of their pixels are observed.

    `pixels` (B, C, H, W) in [0, 1], 0 where missing; `observed` (B, 1, H, W) bool; `uniform`
    (B, N_RANDOM) in [0, 1).
    """
    u = uniform.to(pixels.dtype).unbind(1)
    side = (MIN_AREA + (1 - MIN_AREA) * u[0]).sqrt()
    stretch = torch.exp2((u[1] - 0.5) * 0.8).sqrt()
    height, width = (side * stretch).clamp(max=1), (side / stretch).clamp(max=1)
    top, left = (1 - height) * (2 * u[2] - 1), (1 - width) * (2 * u[3] - 1)
    flip = torch.where(u[4] < 0.5, -1.0, 1.0).to(pixels.dtype)
    zero = torch.zeros_like(top)
    theta = torch.stack([width * flip, zero, left, zero, height, top], 1).view(-1, 2, 3)
    grid = F.affine_grid(theta, list(pixels.shape), align_corners=False)
    both = torch.cat([pixels, observed.to(pixels.dtype)], 1)
    both = F.grid_sample(both, grid, mode="nearest", padding_mode="zeros", align_corners=False)
    x, seen = both[:, :-1], both[:, -1:] > 0.5
    factors = [(1 + COLOR * (2 * each - 1)).view(-1, 1, 1, 1) for each in u[5:8]]
    x = _colors(x, seen, *factors)
    if x.shape[1] == 3:
        gray = (u[8] < GRAY_SHARE).view(-1, 1, 1, 1)
        x = torch.where(gray, x.mean(1, keepdim=True), x)
    return x * seen, seen


def _colors(
    x: Tensor, seen: Tensor, brightness: Tensor, contrast: Tensor, saturation: Tensor
) -> Tensor:
    count = seen.sum((1, 2, 3), keepdim=True).clamp(min=1)
    x = x * brightness
    mean = (x * seen).sum((1, 2, 3), keepdim=True) / (count * x.shape[1])
    x = mean + contrast * (x - mean)
    gray = x.mean(1, keepdim=True)
    return (gray + saturation * (x - gray)).clamp(0, 1)
