"""Embeddings of numbers: periodic, piecewise linear, and flags of frequent values.

Y. Gorishniy, I. Rubachev, A. Babenko. On embeddings for numerical features in tabular deep
learning. 2022. A number x becomes ReLU(W [sin(2πcx), cos(2πcx), bins(x), flags(x)] + b), with
learned frequencies c and a layer (W, b) for each number. bins(x) is 1 in the bins below x, 0 in
those above, and linear in the bin of x; flags(x) marks frequent values. Both need no label. Their
products with W are looked up, because almost all of their entries are 0 or 1. Differences of
correlated numbers are embedded like numbers.
Shapes: R stacked nets, B rows of each, n numbers and differences, m differences, F frequencies,
K bins, S frequent values, w embedding width.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from xvfl.nets.embed_numbers import Lookup, embed_numbers
from xvfl.primitives.layout import Layout, NumberBins

N_FREQUENCIES = 8
FREQUENCY_STD = 1.0
"""Standard deviation of initial frequencies; numbers are scaled to [0, 1]."""

SAME_VALUE = 6e-7
"""Largest difference to a frequent value, which is rounded to 1e-6."""
UNREACHED = 2.0
"""Above all encoded values."""
CONSTANTS = (
    *("numbers", "flags", "lower", "scale", "starts", "frequent"),
    *("second", "second_flags", "slopes", "lows", "stretch"),
)


class NumberEmbeddings(nn.Module):
    """Append the embeddings of all numbers, and of their differences, to a bottom's input.

    The input is the encoded features, then one flag per raw feature. The embedding of a number that
    is neither observed nor completed is zero, and so is that of its differences.
    """

    numbers: Tensor
    flags: Tensor
    lower: Tensor
    scale: Tensor
    starts: Tensor
    """(n, K) lower ends of the bins, ascending: `UNREACHED` where a number has fewer bins."""
    frequent: Tensor
    second: Tensor
    """(m,) columns that are subtracted from those of the last m numbers."""
    second_flags: Tensor
    slopes: Tensor
    lows: Tensor
    stretch: Tensor

    def __init__(self, layout: Layout, width: int) -> None:
        super().__init__()
        pairs = layout.differences
        at = [*layout.numbers, *(each.first for each in pairs)]
        flag_of = [layout.encoded + raw for raw in layout.feature_of_column]
        bins = [layout.bins[i] if layout.bins else NumberBins() for i in layout.numbers]
        bins += [NumberBins()] * len(pairs)
        count, n_bins = len(at), max(1, *(len(each.knots) for each in bins)) - 1
        n_frequent = max(len(each.frequent) for each in bins)
        # A number with fewer bins or frequent values than others has constants in their place.
        lower, scale = torch.zeros(count, n_bins), torch.zeros(count, n_bins)
        starts = torch.full((count, n_bins), UNREACHED)
        frequent = torch.full((count, n_frequent), UNREACHED)
        for place, each in enumerate(bins):
            ends = torch.tensor(each.knots)
            lower[place, : len(ends[1:])] = starts[place, : len(ends[1:])] = ends[:-1]
            scale[place, : len(ends[1:])] = 1 / ends.diff()
            frequent[place, : len(each.frequent)] = torch.tensor(each.frequent)
        flags = torch.tensor([flag_of[i] for i in at])
        second = torch.tensor([each.second for each in pairs], dtype=torch.long)
        second_flags = torch.tensor([flag_of[each.second] for each in pairs], dtype=torch.long)
        slopes, lows = (
            torch.tensor([getattr(each, name) for each in pairs]) for name in ("slope", "low")
        )
        stretch = torch.tensor([1 / (each.high - each.low) for each in pairs])
        of_numbers = (torch.tensor(at), flags, lower, scale, starts, frequent)
        self._set_constants(*of_numbers, second, second_flags, slopes, lows, stretch)
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
        """Map (R·B, columns) or (R, B, columns) to as many rows of columns + n·w."""
        nets, count, _, width = self.weight.shape
        values, given = x.index_select(-1, self.numbers), x.index_select(-1, self.flags)
        if len(self.second):
            values, given = self._with_differences(x, values, given)
        values = values.view(nets, -1, count).transpose(1, 2)
        exporting = torch.onnx.is_in_onnx_export()
        if torch.is_grad_enabled() and not (x.is_cuda or exporting):
            lookups = self._lookups(values.detach())
            out = embed_numbers(values, self.frequencies, self.weight, self.bias, *lookups)
        else:
            out = self._plain(values, exporting)
        embedded = out.transpose(1, 2) * given.view(nets, -1, count, 1)
        return torch.cat([x, embedded.reshape(*x.shape[:-1], count * width)], -1)

    def _with_differences(self, x: Tensor, values: Tensor, given: Tensor) -> tuple[Tensor, Tensor]:
        """Replace the last m numbers by differences; both numbers of each must be given."""
        alone = values.shape[-1] - len(self.second)
        numbers, first = values[..., :alone], values[..., alone:]
        subtracted = self.slopes * x.index_select(-1, self.second)
        scaled = ((first - subtracted - self.lows) * self.stretch).clamp(0, 1)
        both = given[..., alone:] * x.index_select(-1, self.second_flags)
        return torch.cat([numbers, scaled], -1), torch.cat([given[..., :alone], both], -1)

    def _plain(self, values: Tensor, exporting: bool) -> Tensor:
        """Embed numbers (R, n, B) with torch's operators. (R, n, B, w)"""
        angles = 2 * torch.pi * values.unsqueeze(-1) * self.frequencies.unsqueeze(2)
        parts = [angles.sin(), angles.cos()]
        # Servers of earlier versions accept the operators of `_encodings` alone.
        if exporting:
            parts += self._encodings(values)
        encoded = torch.cat(parts, -1)  # (R, n, B, 2F), exported (R, n, B, 2F + K + S)
        out = encoded @ self.weight[:, :, : encoded.shape[-1]] + self.bias
        if not exporting:
            out = out + self._looked_up(values)
        return torch.relu(out)

    def _encodings(self, values: Tensor) -> list[Tensor]:
        """Encode numbers (R, n, B) as bins (R, n, B, K) and flags (R, n, B, S)."""
        parts = []
        if self.lower.shape[1]:
            above = (values.unsqueeze(-1) - self.lower.unsqueeze(1)) * self.scale.unsqueeze(1)
            parts.append(above.clamp(0, 1))
        if self.frequent.shape[1]:
            distance = values.unsqueeze(-1) - self.frequent.unsqueeze(1)
            parts.append((~(distance * distance > SAME_VALUE**2)).to(values.dtype))
        return parts

    def _looked_up(self, values: Tensor) -> Tensor | float:
        """Compute `_encodings(values)` times their weights. (R, n, B, w)"""
        n_bins, width = self.lower.shape[1], self.weight.shape[-1]
        of_bins, of_flags = self.weight[:, :, 2 * N_FREQUENCIES :].tensor_split([n_bins], 2)
        bins, flags = self._lookups(values)
        out: Tensor | float = 0.0
        if bins is not None:
            # The bins below that of a number add up to a number of their own.
            below = of_bins.cumsum(2) - of_bins
            table = torch.cat([below, of_bins], -1).reshape(-1, 2 * width)
            start, slope = functional.embedding(bins.at, table).chunk(2, -1)
            out = torch.addcmul(start, bins.factor.unsqueeze(-1), slope)
        if flags is not None:
            rows = functional.embedding(flags.at, of_flags.reshape(-1, width))
            out = out + rows * flags.factor.unsqueeze(-1)
        return out if isinstance(out, float) else out.view(*values.shape, width)

    def _lookups(self, values: Tensor) -> tuple[Lookup | None, Lookup | None]:
        """Find the bin and the frequent value of numbers (R, n, B)."""
        bins = flags = None
        if self.lower.shape[1]:
            at = _places(self.starts, values)
            scale = _take(self.scale, at)
            above = (values - _take(self.lower, at)) * scale
            slope = scale * ((above >= 0) & (above <= 1))
            bins = Lookup(*_rows(at, self.lower), above.clamp(0, 1).flatten(), slope.flatten())
        if self.frequent.shape[1]:
            at = _places(self.frequent - SAME_VALUE, values)
            distance = values.detach() - _take(self.frequent, at)
            same = (~(distance * distance > SAME_VALUE**2)).to(values.dtype)
            flags = Lookup(*_rows(at, self.frequent), same.flatten())
        return bins, flags

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


def _places(ascending: Tensor, values: Tensor) -> Tensor:
    """Find the last of n rows of K ends that is not above each value (R, n, B); else the first."""
    nets, count, rows = values.shape
    by_number = values.detach().transpose(0, 1).reshape(count, -1).contiguous()
    places = torch.searchsorted(ascending, by_number, right=True).clamp_(min=1).sub_(1)
    return places.view(count, nets, rows).transpose(0, 1)


def _take(constants: Tensor, places: Tensor) -> Tensor:
    """Look up constants (n, K) at the places (R, n, B)."""
    first = torch.arange(len(constants), device=places.device).view(-1, 1) * constants.shape[1]
    return constants.take(places + first)


def _rows(places: Tensor, constants: Tensor) -> tuple[int, Tensor]:
    """Return K of constants (n, K), and the places (R, n, B) among the weights of all numbers."""
    nets, count, _ = places.shape
    size = constants.shape[1]
    first = torch.arange(nets * count, device=places.device).view(nets, count, 1) * size
    return size, (places + first).flatten()
