"""Embeddings of numbers: periodic, piecewise linear, and flags of frequent values.

Y. Gorishniy, I. Rubachev, A. Babenko. On embeddings for numerical features in tabular deep
learning. 2022. A number x becomes ReLU(W [sin(2πcx), cos(2πcx), bins(x), flags(x)] + b), with
learned frequencies c and a layer (W, b) for each number. bins(x) is 1 in the bins below x, 0 in
those above, and linear in the bin of x; flags(x) marks frequent values. Both need no label.
Shapes: R stacked nets, B rows of each, n numbers, F frequencies, K bins, S frequent values,
w embedding width.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from xvfl.primitives.layout import Layout, NumberBins

N_FREQUENCIES = 8
FREQUENCY_STD = 1.0
"""Standard deviation of initial frequencies; numbers are scaled to [0, 1]."""

SAME_VALUE = 6e-7
"""Largest difference to a frequent value, which is rounded to 1e-6."""
UNREACHED = 2.0
"""Above all encoded values."""
CONSTANTS = ("numbers", "flags", "lower", "scale", "frequent")


class NumberEmbeddings(nn.Module):
    """Append the embeddings of all numbers to a bottom's input.

    The input is the encoded features, then one flag per raw feature. The embedding of a number that
    is neither observed nor completed is zero.
    """

    numbers: Tensor
    flags: Tensor
    lower: Tensor
    scale: Tensor
    frequent: Tensor

    def __init__(self, layout: Layout, width: int) -> None:
        super().__init__()
        columns = enumerate(layout.feature_of_column)
        at = [(i, raw) for i, raw in columns if layout.features[raw].kind == "numeric"]
        flags = torch.tensor([layout.encoded + raw for _, raw in at])
        bins = [layout.bins[i] if layout.bins else NumberBins() for i, _ in at]
        count, n_bins = len(at), max(1, *(len(each.knots) for each in bins)) - 1
        n_frequent = max(len(each.frequent) for each in bins)
        # A number with fewer bins or frequent values than others has constants in their place.
        lower, scale = torch.zeros(count, n_bins), torch.zeros(count, n_bins)
        frequent = torch.full((count, n_frequent), UNREACHED)
        for place, each in enumerate(bins):
            ends = torch.tensor(each.knots)
            lower[place, : len(ends[1:])] = ends[:-1]
            scale[place, : len(ends[1:])] = 1 / ends.diff()
            frequent[place, : len(each.frequent)] = torch.tensor(each.frequent)
        self._set_constants(torch.tensor([i for i, _ in at]), flags, lower, scale, frequent)
        wide = 2 * N_FREQUENCIES + n_bins + n_frequent
        self.frequencies = nn.Parameter(FREQUENCY_STD * torch.randn(1, count, N_FREQUENCIES))
        bound = 1 / math.sqrt(wide)
        self.weight = nn.Parameter(torch.empty(1, count, wide, width).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(1, count, 1, width).uniform_(-bound, bound))

    def _set_constants(self, *values: Tensor) -> None:
        for name, value in zip(CONSTANTS, values, strict=True):
            self.register_buffer(name, value, persistent=False)

    @property
    def width(self) -> int:
        """Number of appended columns."""
        return self.weight.shape[1] * self.weight.shape[3]

    def forward(self, x: Tensor) -> Tensor:
        """Map (R·B, columns) to (R·B, columns + n·w)."""
        nets, count, _, width = self.weight.shape
        values = x.index_select(-1, self.numbers).view(nets, -1, count).transpose(1, 2)
        angles = 2 * torch.pi * values.unsqueeze(-1) * self.frequencies.unsqueeze(2)
        parts = [angles.sin(), angles.cos()]
        if self.lower.shape[1]:
            above = (values.unsqueeze(-1) - self.lower.unsqueeze(1)) * self.scale.unsqueeze(1)
            parts.append(above.clamp(0, 1))
        if self.frequent.shape[1]:
            distance = values.unsqueeze(-1) - self.frequent.unsqueeze(1)
            # Exported as operators that servers of earlier versions accept.
            parts.append((~(distance * distance > SAME_VALUE**2)).to(x.dtype))
        encoded = torch.cat(parts, -1)  # (R, n, B, 2F + K + S)
        out = torch.relu(encoded @ self.weight + self.bias).transpose(1, 2)
        given = x.index_select(-1, self.flags).view(nets, -1, count, 1)
        return torch.cat([x, (out * given).reshape(x.shape[0], count * width)], -1)

    @classmethod
    def stack(cls, nets: Sequence["NumberEmbeddings"]) -> "NumberEmbeddings":
        """Combine the embeddings of several nets."""
        stacked = cls.__new__(cls)
        nn.Module.__init__(stacked)
        stacked._set_constants(*(getattr(nets[0], name) for name in CONSTANTS))
        for name in ("frequencies", "weight", "bias"):
            parts = [getattr(each, name).detach() for each in nets]
            setattr(stacked, name, nn.Parameter(torch.cat(parts)))
        return stacked
