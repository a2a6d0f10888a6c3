"""A party's nets: bottom, completer and the embeddings of hashed categories.

Shapes: B rows, p encoded columns, d embedding width.
"""

from typing import cast

import torch
from torch import Tensor, nn

from xvfl import maths
from xvfl.nets.completers import NoCompleter
from xvfl.nets.row_wise import apply_to_rows
from xvfl.primitives.layout import Layout
from xvfl.primitives.rows import PartyTable


class PartyNet(nn.Module):
    """f_i, XCom_i and the learned vectors of hashed categories."""

    columns: Tensor

    def __init__(self, layout: Layout, bottom: nn.Module, completer: nn.Module) -> None:
        super().__init__()
        self.layout = layout
        self.bottom = bottom
        self.completer = completer
        self.vectors = nn.ModuleList([nn.Embedding(f.buckets, f.width) for f in layout.hashed])
        at = torch.tensor(layout.feature_of_column, dtype=torch.long)
        self.register_buffer("columns", at, persistent=False)
        self.completes = not isinstance(completer, NoCompleter)
        self.completer_sees = bool(getattr(completer, "sees_features", False))
        """Whether the completer also takes the party's observed features."""
        self.runs, self.members = 1, 1
        """Number of stacked runs, and of members of each that take the same encoded rows."""
        self.bf16 = False
        """Whether bottom and completer compute in bf16 on a GPU; everything else is float32."""

    def encode(self, rows: PartyTable) -> Tensor:
        """Look up the vectors of hashed categories and append them to the numbers. (B, p)"""
        vectors = [table(rows.codes[:, i]) for i, table in enumerate(self.vectors)]
        return torch.cat([rows.values, *vectors], 1) if vectors else rows.values

    def spread(self, observed: Tensor) -> Tensor:
        """Expand a mask of raw features to encoded columns (for images, to channels)."""
        if self.layout.image is not None:
            return observed.view(-1, 1, *self.layout.image[1:])
        if self.layout.raw == self.layout.encoded:
            return observed
        return observed.index_select(1, self.columns)

    def given(self, x: Tensor, given: Tensor) -> Tensor:
        """Build the input of f_i: encoded features and one flag per raw feature.

        A feature is given if it is observed or completed. Otherwise its value is 0, and the flag
        distinguishes it from a real 0 (D3).
        """
        # From bool it would take three times as long; ONNX has no view as another type.
        numbers = given if torch.onnx.is_in_onnx_export() else given.view(torch.uint8)
        flags = numbers.to(x.dtype)
        return self._flagged(x * self.spread(flags), flags)

    def merged(self, x: Tensor, observed: Tensor, completed: Tensor) -> Tensor:
        """Build the input x̂_i of f_i: observed features, and completed ones elsewhere."""
        filled = maths.merge(x, completed, self.spread(observed))
        return self._flagged(filled, torch.ones_like(observed, dtype=x.dtype))

    def _flagged(self, x: Tensor, flags: Tensor) -> Tensor:
        if self.layout.image is not None:
            flags = flags.view(-1, 1, *self.layout.image[1:])
        return torch.cat([x, flags], 1)

    def embed(self, x: Tensor, given: Tensor) -> Tensor:
        """Apply f_i to encoded features, with one flag per raw feature. (M·B, d)"""
        return self.embed_given(self.given(x, given))

    def embed_own(self, x: Tensor, given: Tensor) -> Tensor:
        """Apply the f_i of each member to rows of its own (R·M·B, p). (R·M·B, d)"""
        return self.compute(self.bottom, self.given(x, given))

    def embed_given(self, inputs: Tensor) -> Tensor:
        """Apply the f_i of all members to inputs (R·B, n) that they share. (R·M·B, d)"""
        if self.members > 1 and self.runs == 1:
            # A traced graph keeps the number of rows open.
            inputs = inputs.unsqueeze(0)
        elif self.members > 1:
            inputs = inputs.view(self.runs, len(inputs) // self.runs, inputs.shape[-1])
        return self.compute(self.bottom, inputs)

    def embed_rows(self, needed: Tensor | None, inputs: Tensor) -> Tensor:
        """Apply `embed_given` to the needed rows, with zeros elsewhere; None = all. (R·M·B, d)"""
        return apply_to_rows(
            self.embed_given, needed, inputs, stacked=self.runs, members=self.members
        )

    def first_of_members(self, part: Tensor) -> Tensor:
        """Select the rows of the first member of each run: (R·M·B, …) to (R·B, …)."""
        if self.members == 1:
            return part
        count = len(part) // (self.runs * self.members)
        return part.view(self.runs, self.members, count, *part.shape[1:])[:, 0].flatten(0, 1)

    def repeat_for_members(self, part: Tensor) -> Tensor:
        """Repeat the rows of each run for each of its members: (R·B, …) to (R·M·B, …)."""
        if self.members == 1:
            return part
        if self.runs == 1:
            return part.repeat(self.members, *[1] * (part.dim() - 1))
        by_run = part.view(self.runs, 1, len(part) // self.runs, *part.shape[1:])
        return by_run.expand(-1, self.members, *by_run.shape[2:]).flatten(0, 2)

    def complete(self, x: Tensor, observed: Tensor, cue: Tensor) -> tuple[Tensor, Tensor]:
        """Complete rows from a cue; return Ẽ = f_i(x̂) (B, d) and the completer's X̃ (B, p)."""
        completed = self.compute(self.completer, *self.completer_inputs(x, observed, cue))
        return self.compute(self.bottom, self.merged(x, observed, completed)), completed

    def completer_inputs(self, x: Tensor, observed: Tensor, cue: Tensor) -> tuple[Tensor, ...]:
        """Return what the completer takes: the cue, and the observed features if it sees them."""
        return (cue, self.given(x, observed)) if self.completer_sees else (cue,)

    def compute(self, net: nn.Module, *inputs: Tensor) -> Tensor:
        """Apply the bottom or the completer in the configured precision."""
        if not self.bf16:
            return cast(Tensor, net(*inputs))
        # `net` is compiled, for the fixed shapes of training on a GPU alone.
        first = inputs[0]
        run = net if self.training and first.is_cuda else net.forward
        if not first.is_cuda:
            return cast(Tensor, run(*inputs))
        formatted = [
            x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x for x in inputs
        ]
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            out = run(*formatted)
        return cast(Tensor, out.to(first.dtype))
