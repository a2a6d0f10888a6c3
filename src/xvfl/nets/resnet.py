"""Residual bottoms for images, with any number of blocks and without batch normalization."""

from typing import cast

from torch import Tensor, nn
from torch.nn import functional as F

from xvfl.nets.norm import GroupNorm


class Block(nn.Module):
    """Two 3×3 convolutions with group normalization and a shortcut."""

    def __init__(self, fan_in: int, fan_out: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(fan_in, fan_out, 3, stride, 1, bias=False)
        self.first_norm = GroupNorm(8, fan_out)
        self.second = nn.Conv2d(fan_out, fan_out, 3, 1, 1, bias=False)
        self.second_norm = GroupNorm(8, fan_out)
        same = stride == 1 and fan_in == fan_out
        self.shortcut = nn.Identity() if same else nn.Conv2d(fan_in, fan_out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Add the block's output to its (projected) input."""
        out = F.relu(self.first_norm(self.first(x)))
        out = self.second_norm(self.second(out))
        return F.relu(out + cast(Tensor, self.shortcut(x)))


class ResidualBottom(nn.Module):
    """f_i for images: stem, residual blocks in up to four widths, global average, linear."""

    def __init__(self, channels: int, d: int, blocks: int, width: int = 32) -> None:
        super().__init__()
        stages = min(4, blocks)
        sizes = [width * 2 ** (i * stages // blocks) for i in range(blocks)]
        self.stem = nn.Conv2d(channels, width, 3, 1, 1, bias=False)
        self.stem_norm = GroupNorm(8, width)
        before = [width, *sizes[:-1]]
        self.blocks = nn.Sequential(
            *[Block(a, b, 1 if a == b else 2) for a, b in zip(before, sizes, strict=True)]
        )
        self.out = nn.Linear(sizes[-1], d)

    def forward(self, x: Tensor) -> Tensor:
        """Embed images (B, channels, height, width) as (B, d)."""
        x = F.relu(self.stem_norm(self.stem(x)))
        return cast(Tensor, self.out(self.blocks(x).mean((2, 3))))
