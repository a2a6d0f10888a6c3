"""Completers XCom_i: R^d to encoded features, each kind of feature in its own range."""

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from xvfl.layout import Kind, Layout


class TypedOutput(nn.Module):
    """Bound raw outputs: sigmoid for numerics, softmax per category group, vectors as they are."""

    numeric: Tensor
    vectors: Tensor
    groups: Tensor
    members: Tensor
    order: Tensor
    padding: Tensor

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        columns: dict[Kind, list[list[int]]] = {"numeric": [], "category": [], "hashed": []}
        start = 0
        for feature in layout.features:
            columns[feature.kind].append(list(range(start, start + feature.width)))
            start += feature.width
        groups = columns["category"]
        widest = max((len(group) for group in groups), default=0)
        padded = torch.tensor([group + [-1] * (widest - len(group)) for group in groups])
        padded = padded.view(len(groups), widest).long()
        numeric, category, vectors = (_flat(columns[kind]) for kind in columns)
        buffers = {
            "numeric": numeric,
            "vectors": vectors,
            "groups": padded.clamp(min=0),
            "padding": padded < 0,
            "members": (padded >= 0).flatten().nonzero().flatten(),
            "order": torch.cat([numeric, category, vectors]).argsort(),
        }
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer, persistent=False)

    def forward(self, raw: Tensor) -> Tensor:
        """Map raw outputs (B, p) to values in each feature's range (B, p)."""
        parts = [torch.sigmoid(raw[:, self.numeric])]
        if self.groups.numel():
            scores = raw[:, self.groups].masked_fill(self.padding, -math.inf)
            parts.append(torch.softmax(scores, -1).flatten(1)[:, self.members])
        parts.append(raw[:, self.vectors])
        return torch.cat(parts, 1)[:, self.order]


def _flat(columns: list[list[int]]) -> Tensor:
    return torch.tensor([column for group in columns for column in group], dtype=torch.long)


class ImageTrunk(nn.Module):
    """Grow an embedding into an image through two doublings; values before the sigmoid."""

    def __init__(self, d: int, image: tuple[int, int, int], width: int = 64) -> None:
        super().__init__()
        channels, self.height, self.width = image
        self.start = (width, math.ceil(self.height / 4), math.ceil(self.width / 4))
        self.seed = nn.Linear(d, math.prod(self.start))
        self.first = nn.Conv2d(width, width, 3, 1, 1)
        self.second = nn.Conv2d(width, width // 2, 3, 1, 1)
        self.out = nn.Conv2d(width // 2, channels, 3, 1, 1)
        self.norms = nn.ModuleList([nn.GroupNorm(8, width), nn.GroupNorm(8, width // 2)])

    def forward(self, cue: Tensor) -> Tensor:
        """Map cues (B, d) to images (B, channels, height, width)."""
        x = F.relu(self.seed(cue)).view(-1, *self.start)
        x = F.relu(self.norms[0](self.first(F.interpolate(x, scale_factor=2.0))))
        x = F.relu(self.norms[1](self.second(F.interpolate(x, scale_factor=2.0))))
        return cast(Tensor, self.out(x)[:, :, : self.height, : self.width])


class Completer(nn.Module):
    """XCom_i: a trunk, then outputs in each feature's own range."""

    def __init__(self, trunk: nn.Module, layout: Layout) -> None:
        super().__init__()
        self.trunk = trunk
        self.typed = nn.Sigmoid() if layout.image is not None else TypedOutput(layout)

    def forward(self, cue: Tensor) -> Tensor:
        """Complete every feature of a party from a cue (B, d)."""
        return cast(Tensor, self.typed(self.trunk(cue)))
