"""Completers XCom_i: map R^d to encoded features, each kind of feature in its own range."""

import math
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

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
