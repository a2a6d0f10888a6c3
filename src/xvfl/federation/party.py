"""A party: its nets, its rows, and the views of them it embeds.

Shapes: B rows, p encoded columns, d embedding width, v views.
"""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from xvfl import maths
from xvfl.data.missing import drop_features
from xvfl.data.rows import PartyTable, Table
from xvfl.federation.holder import Holder
from xvfl.layout import Layout
from xvfl.methods.base import View
from xvfl.streams import Draws, seed_modules


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

    def encode(self, rows: PartyTable) -> Tensor:
        """Turn codes into their vectors and put them behind the numbers. (B, p)"""
        found = [table(rows.codes[:, i]) for i, table in enumerate(self.vectors)]
        return torch.cat([rows.values, *found], 1) if found else rows.values

    def spread(self, observed: Tensor) -> Tensor:
        """Spread a mask of raw features over their encoded columns (an image: its channels)."""
        if self.layout.image is not None:
            return observed.view(-1, 1, *self.layout.image[1:])
        if self.layout.raw == self.layout.encoded:
            return observed
        return observed[:, self.columns]

    def embed(self, x: Tensor, given: Tensor) -> Tensor:
        """Apply f_i to encoded features, each raw one flagged as given or not. (B, d)

        Given means that a value stands there, observed or completed; where none does, the neutral
        0 stands, and the flag tells it from a real 0 (D3).
        """
        x = x * self.spread(given).to(x.dtype)
        flags = given.to(x.dtype)
        if self.layout.image is not None:
            flags = flags.view(-1, 1, *self.layout.image[1:])
        return cast(Tensor, self.bottom(torch.cat([x, flags], 1)))

    def complete(self, x: Tensor, observed: Tensor, cue: Tensor) -> tuple[Tensor, Tensor]:
        """Complete rows from a cue: Ẽ = f_i(x̂) (B, d), and the completer's own X̃ (B, p)."""
        completed = self.completer(cue)
        merged = maths.merge(x, completed, self.spread(observed))
        return self.embed(merged, torch.ones_like(observed)), completed


class PartySide:
    """One party at work: embeds its rows, completes them from cues, keeps the step's graph."""

    def __init__(
        self,
        name: str,
        net: PartyNet,
        table: Table,
        seeds: Sequence[int],
        reconstruction: float = 0.0,
    ) -> None:
        """Put a party's net and rows to work; `reconstruction` weighs its own objective.

        With several seeds the net is stacked and the rows are those of all runs, run after run.
        """
        self.name = name
        self.net = net
        self.table = table
        self.seeds = tuple(seeds)
        self._draws: list[Draws] = []
        self.reconstruction = reconstruction
        self.holder: Holder | None = None
        """Its net's optimiser, once training has begun."""
        self.objective: Tensor | None = None
        """What the party minimises beside the coordinator's loss; made by each step."""

    def embed(self, handles: Tensor, views: Sequence[View], step: int | Tensor) -> Tensor:
        """Embed the rows in each view. (B, v, d)

        `plain`: as observed; `masked`: with more features dropped at random, in training only;
        `self`: a masked row completed from its own embedding. The first `self` belongs to the first
        `masked`, and so on: each pair has a mask of its own.
        """
        seed_modules(handles.device, self.seeds[0], self.name, step, "embed")
        rows = self.table.take(handles)
        self._x, self._observed, self._step = self.net.encode(rows), rows.observed, step
        self.objective = None
        drawn = max(views.count("masked"), views.count("self"))
        masked = [self._masked(rows.observed, step, which) for which in range(drawn)]
        masks = [rows.observed, *masked] if "plain" in views else masked
        E = self.net.embed(_copies(self._x, len(masks)), torch.stack(masks, 1).flatten(0, 1))
        each = E.view(len(handles), len(masks), E.shape[-1]).unbind(1)
        own: Sequence[Tensor] = ()
        if "self" in views:
            own = self._complete(each[-drawn:], masked)
        made = {"plain": iter(each), "masked": iter(each[len(each) - drawn :]), "self": iter(own)}
        return torch.stack([next(made[view]) for view in views], 1)

    def complete(self, cue: Tensor, whole: Tensor) -> Tensor:
        """Embed the rows completed from a cue; `whole` rows keep nothing they observed. (B, d)"""
        seed_modules(cue.device, self.seeds[0], self.name, self._step, "complete")
        return self._complete([cue], [self._observed & ~whole.unsqueeze(1)])[0]

    def _masked(self, observed: Tensor, step: int | Tensor, which: int) -> Tensor:
        if not self.net.training:
            return observed
        while len(self._draws) <= which:
            self._draws.append(Draws(self.seeds, self.name, "mask", len(self._draws)))
        rows, raw = observed.shape
        drawn = self._draws[which].uniform(step, rows, 1 + raw, observed.device)
        return drop_features(observed, drawn)

    def _complete(self, cues: Sequence[Tensor], kept: Sequence[Tensor]) -> Sequence[Tensor]:
        """Complete the rows from each cue, beside what is kept of them."""
        copies = len(cues)
        cue, keep = torch.stack(tuple(cues), 1), torch.stack(tuple(kept), 1)
        embedded, completed = self.net.complete(
            _copies(self._x, copies), keep.flatten(0, 1), cue.flatten(0, 1)
        )
        if self.reconstruction and self.net.training:
            loss = self.reconstruction * copies * self._error(completed, copies)
            self.objective = loss if self.objective is None else self.objective + loss
        return embedded.view(len(self._x), copies, embedded.shape[-1]).unbind(1)

    def _error(self, completed: Tensor, copies: int) -> Tensor:
        target = self.net.spread(_copies(self._observed, copies)).expand_as(completed)
        weight = target.to(completed.dtype)
        error = (completed - _copies(self._x.detach(), copies)).square() * weight
        each = (len(self.seeds), -1)
        return (error.view(each).sum(1) / weight.reshape(each).sum(1).clamp(min=1)).sum()


def _copies(x: Tensor, count: int) -> Tensor:
    """Repeat every row, its copies next to each other: rows of a run stay together."""
    return x if count == 1 else x.repeat_interleave(count, 0)
