"""Random changes of training images."""

from dataclasses import replace

import torch
from torch import Tensor

from xvfl.primitives.rows import PartyTable


def shift_images(rows: PartyTable, uniform: Tensor, share: float) -> PartyTable:
    """Shift each image by up to a share of its height and width; pixels at the border repeat.

    `uniform` (B, 2), in [0, 1): the vertical and the horizontal shift of each row. Pixels are
    shifted together with what is observed of them.
    """
    assert rows.layout.image is not None
    channels, height, width = rows.layout.image
    down, right = (
        _shifted_places(size, uniform[:, i], share) for i, size in enumerate((height, width))
    )
    places = (down.unsqueeze(2) * width + right.unsqueeze(1)).flatten(1)
    of_channels = places.unsqueeze(1).expand(-1, channels, -1)
    values = rows.values.flatten(2).gather(2, of_channels).view_as(rows.values)
    return replace(rows, values=values, observed=rows.observed.gather(1, places))


def _shifted_places(size: int, uniform: Tensor, share: float) -> Tensor:
    """Return the source of each place along an axis, row by row. (B, size)"""
    most = int(share * size)
    shift = (uniform * (2 * most + 1)).long() - most
    places = torch.arange(size, device=uniform.device) + shift.unsqueeze(1)
    return places.clamp(0, size - 1)
