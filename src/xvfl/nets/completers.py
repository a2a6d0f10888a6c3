"""Completers XCom_i: map a cue to encoded features, each kind of feature in its own range.

The paper's completer takes the cue alone. A completer with `sees_features` also takes what its
party observes, in the form of a bottom's input: features, zero where missing, and flags.
"""

import math
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from xvfl.nets.mlp import mlp
from xvfl.nets.norm import GroupNorm
from xvfl.primitives.layout import Kind, Layout


class TypedOutput(nn.Module):
    """Sigmoid for numeric features, softmax for one-hot groups, identity for learned vectors."""

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self.groups: list[tuple[Kind, int]] = []
        for feature in layout.features:
            if self.groups and feature.kind == self.groups[-1][0] != "category":
                self.groups[-1] = (feature.kind, self.groups[-1][1] + feature.width)
            else:
                self.groups.append((feature.kind, feature.width))

    def extra_repr(self) -> str:
        """Show the groups of outputs."""
        return str(self.groups)

    def forward(self, raw: Tensor) -> Tensor:
        """Map raw outputs (B, p) to values in each feature's range (B, p)."""
        parts = torch.split(raw, [width for _, width in self.groups], 1)
        bounded = [BOUND[kind](part) for (kind, _), part in zip(self.groups, parts, strict=True)]
        return torch.cat(bounded, 1)


BOUND: dict[Kind, Callable[[Tensor], Tensor]] = {
    "numeric": torch.sigmoid,
    "category": lambda part: torch.softmax(part, -1),
    "hashed": lambda part: part,
}


class ImageTrunk(nn.Module):
    """Upsample an embedding to an image in two steps; returns values before the sigmoid."""

    def __init__(self, d: int, image: tuple[int, int, int], width: int = 64) -> None:
        super().__init__()
        channels, self.height, self.width = image
        self.start = (width, math.ceil(self.height / 4), math.ceil(self.width / 4))
        self.seed = nn.Linear(d, math.prod(self.start))
        self.first = nn.Conv2d(width, width, 3, 1, 1)
        self.second = nn.Conv2d(width, width // 2, 3, 1, 1)
        self.out = nn.Conv2d(width // 2, channels, 3, 1, 1)
        self.norms = nn.ModuleList([GroupNorm(8, width), GroupNorm(8, width // 2)])

    def forward(self, cue: Tensor) -> Tensor:
        """Map cues (B, d) to images (B, channels, height, width)."""
        x = F.relu(self.seed(cue)).view(-1, *self.start)
        x = F.relu(self.norms[0](self.first(F.interpolate(x, scale_factor=2.0))))
        x = F.relu(self.norms[1](self.second(F.interpolate(x, scale_factor=2.0))))
        return cast(Tensor, self.out(x)[:, :, : self.height, : self.width])


class TableFusion(nn.Module):
    """Map a cue and a table's observed features to values before their ranges."""

    def __init__(self, d: int, layout: Layout, hidden: int) -> None:
        super().__init__()
        self.from_cue = nn.Linear(d, hidden)
        self.from_features = nn.Linear(layout.encoded + layout.raw, hidden)
        self.out = mlp([hidden, hidden, layout.encoded])

    def forward(self, cue: Tensor, given: Tensor) -> Tensor:
        """Map cues (B, d) and inputs (B, p + raw) to (B, p)."""
        return cast(Tensor, self.out(F.relu(self.from_cue(cue) + self.from_features(given))))


class ImageFusion(nn.Module):
    """Map a cue and an image's observed pixels to an image before the sigmoid.

    A U-Net with three resolutions; the cue is added at the coarsest.
    """

    def __init__(self, d: int, image: tuple[int, int, int], width: int = 32) -> None:
        super().__init__()
        channels = image[0]
        wide = 2 * width
        self.first = nn.Conv2d(channels + 1, width, 3, 1, 1)
        self.to_half_size = nn.Conv2d(width, wide, 3, 2, 1)
        self.to_quarter_size = nn.Conv2d(wide, wide, 3, 2, 1)
        self.from_cue = nn.Linear(d, wide)
        self.middle = nn.Conv2d(wide, wide, 3, 1, 1)
        self.to_half = nn.Conv2d(2 * wide, wide, 3, 1, 1)
        self.to_whole = nn.Conv2d(wide + width, width, 3, 1, 1)
        self.out = nn.Conv2d(width, channels, 3, 1, 1)
        sizes = (width, wide, wide, wide, wide, width)
        self.norms = nn.ModuleList([GroupNorm(8, size) for size in sizes])

    def forward(self, cue: Tensor, given: Tensor) -> Tensor:
        """Map cues (B, d) and inputs (B, channels + 1, height, width) to images."""
        whole = F.relu(self.norms[0](self.first(given)))
        half = F.relu(self.norms[1](self.to_half_size(whole)))
        x = F.relu(self.norms[2](self.to_quarter_size(half)))
        x = x + self.from_cue(cue)[:, :, None, None]
        x = F.relu(self.norms[3](self.middle(x)))
        x = torch.cat([F.interpolate(x, half.shape[2:]), half], 1)
        x = F.relu(self.norms[4](self.to_half(x)))
        x = torch.cat([F.interpolate(x, whole.shape[2:]), whole], 1)
        return cast(Tensor, self.out(F.relu(self.norms[5](self.to_whole(x)))))


class SeeingCompleter(nn.Module):
    """A completer that also sees what its party observes."""

    sees_features = True

    def __init__(self, trunk: nn.Module, layout: Layout) -> None:
        super().__init__()
        self.trunk = trunk
        self.typed = nn.Sigmoid() if layout.image is not None else TypedOutput(layout)

    def forward(self, cue: Tensor, given: Tensor) -> Tensor:
        """Complete all features of a party from cues (B, d) and the inputs of its bottom."""
        return cast(Tensor, self.typed(self.trunk(cue, given)))


class Completer(nn.Module):
    """XCom_i: a trunk, then outputs in each feature's range."""

    def __init__(self, trunk: nn.Module, layout: Layout) -> None:
        super().__init__()
        self.trunk = trunk
        self.typed = nn.Sigmoid() if layout.image is not None else TypedOutput(layout)

    def forward(self, cue: Tensor) -> Tensor:
        """Complete all features of a party from cues (B, d)."""
        return cast(Tensor, self.typed(self.trunk(cue)))


class NoCompleter(nn.Module):
    """Placeholder for methods without completion."""
