"""Periodic embeddings of numbers.

Y. Gorishniy, I. Rubachev, A. Babenko. On embeddings for numerical features in tabular deep
learning. 2022. A number x becomes ReLU(W [sin(2πcx), cos(2πcx)] + b), with learned frequencies c
and a layer (W, b) for each number.
Shapes: R stacked nets, B rows of each, n numbers, F frequencies, w embedding width.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from xvfl.primitives.layout import Layout

N_FREQUENCIES = 8
FREQUENCY_STD = 1.0
"""Standard deviation of initial frequencies; numbers are scaled to [0, 1]."""


class NumberEmbeddings(nn.Module):
    """Append the embeddings of all numbers to a bottom's input.

    The input is the encoded features, then one flag per raw feature. The embedding of a number that
    is neither observed nor completed is zero.
    """

    numbers: Tensor
    flags: Tensor

    def __init__(self, layout: Layout, width: int) -> None:
        super().__init__()
        columns = enumerate(layout.feature_of_column)
        at = [(i, raw) for i, raw in columns if layout.features[raw].kind == "numeric"]
        self.register_buffer("numbers", torch.tensor([i for i, _ in at]), persistent=False)
        flags = torch.tensor([layout.encoded + raw for _, raw in at])
        self.register_buffer("flags", flags, persistent=False)
        count, wide = len(at), 2 * N_FREQUENCIES
        self.frequencies = nn.Parameter(FREQUENCY_STD * torch.randn(1, count, N_FREQUENCIES))
        bound = 1 / math.sqrt(wide)
        self.weight = nn.Parameter(torch.empty(1, count, wide, width).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(1, count, 1, width).uniform_(-bound, bound))

    @property
    def width(self) -> int:
        """Number of appended columns."""
        return self.weight.shape[1] * self.weight.shape[3]

    def forward(self, x: Tensor) -> Tensor:
        """Map (R·B, columns) to (R·B, columns + n·w)."""
        nets, count, _, width = self.weight.shape
        values = x.index_select(-1, self.numbers).view(nets, -1, count).transpose(1, 2)
        angles = 2 * torch.pi * values.unsqueeze(-1) * self.frequencies.unsqueeze(2)
        waves = torch.cat([angles.sin(), angles.cos()], -1)  # (R, n, B, 2F)
        out = torch.relu(waves @ self.weight + self.bias).transpose(1, 2)
        given = x.index_select(-1, self.flags).view(nets, -1, count, 1)
        return torch.cat([x, (out * given).reshape(x.shape[0], count * width)], -1)

    @classmethod
    def stack(cls, nets: Sequence["NumberEmbeddings"]) -> "NumberEmbeddings":
        """Combine the embeddings of several nets."""
        stacked = cls.__new__(cls)
        nn.Module.__init__(stacked)
        stacked.register_buffer("numbers", nets[0].numbers, persistent=False)
        stacked.register_buffer("flags", nets[0].flags, persistent=False)
        for name in ("frequencies", "weight", "bias"):
            parts = [getattr(each, name).detach() for each in nets]
            setattr(stacked, name, nn.Parameter(torch.cat(parts)))
        return stacked
