"""A party: its nets, its rows, and the views of them it embeds.

Shapes: B rows, p encoded columns, d embedding width, v views.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from xvfl.methods.base import View
from xvfl.nets.party_net import PartyNet
from xvfl.nets.row_wise import apply_to_rows, row_wise
from xvfl.primitives.masks import drop_features
from xvfl.primitives.random import CounterRNG, seed_modules
from xvfl.primitives.rows import Table
from xvfl.training.optimizer import OptimizedNet


class PartyWorker:
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
        self._draws: list[CounterRNG] = []
        self.reconstruction = reconstruction
        self.row_wise = all(row_wise(each) for each in (net.bottom, net.completer))
        self.optimized_net: OptimizedNet | None = None
        """Its net's optimizer, once training has begun."""
        self.objective: Tensor | None = None
        """What the party minimises beside the coordinator's loss; made by each step."""

    def embed(
        self,
        handles: Tensor,
        views: Sequence[View],
        step: int | Tensor,
        wanted: Tensor | None = None,
    ) -> Tensor:
        """Embed the rows in each view, or those that are `wanted` (B, v). (B, v, d)

        `plain`: as observed; `masked`: with more features dropped at random, in training only;
        `self`: a masked row completed from its own embedding. The first `self` belongs to the first
        `masked`, and so on: each pair has a mask of its own.
        """
        self._seed(step, "embed")
        rows = self.table.take(handles)
        self._x, self._observed, self._step = self.net.encode(rows), rows.observed, step
        self.objective = None
        drawn = max(views.count("masked"), views.count("self"))
        masked = [self._masked(rows.observed, step, which) for which in range(drawn)]
        masks = [rows.observed, *masked] if "plain" in views else masked
        looked_at = self._looked_at(views, wanted, drawn)
        x = self.net.given(_copies(self._x, len(masks)), _beside(masks))
        E = self._apply(self.net.bottom, x, looked_at)
        if len(views) == len(masks) == 1 and "self" not in views:
            return E.unsqueeze(1)
        each = E.view(len(handles), len(masks), E.shape[-1]).unbind(1)
        own: Sequence[Tensor] = ()
        if "self" in views:
            after = None if looked_at is None else looked_at[:, -drawn:]
            completed = self._complete(_beside(each[-drawn:]), _beside(masked), after)
            own = completed.view(len(handles), drawn, completed.shape[-1]).unbind(1)
        made = {"plain": iter(each), "masked": iter(each[len(each) - drawn :]), "self": iter(own)}
        return torch.stack([next(made[view]) for view in views], 1)

    def complete(self, cue: Tensor, whole: Tensor, wanted: Tensor | None = None) -> Tensor:
        """Embed the rows completed from a cue, or those that are `wanted` (B,). (B, d)

        Rows to complete `whole` keep nothing they observed.
        """
        self._seed(self._step, "complete")
        looked_at = wanted.unsqueeze(1) if wanted is not None and self.row_wise else None
        return self._complete(cue, self._observed & ~whole.unsqueeze(1), looked_at)

    def _seed(self, step: int | Tensor, what: str) -> None:
        """Name the draws of dropout; nets that work row by row make none."""
        if not self.row_wise:
            seed_modules(self.table.device, self.seeds[0], self.name, step, what)

    def _looked_at(self, views: Sequence[View], wanted: Tensor | None, drawn: int) -> Tensor | None:
        """Say which copies any wanted view is made of: plain, then the masked ones. (B, copies)"""
        if wanted is None or not self.row_wise:
            return None
        copies = [wanted[:, i] for i, view in enumerate(views) if view == "plain"]
        for which in range(drawn):
            made = [_nth(views, view, which) for view in ("masked", "self")]
            copies.append(torch.stack([wanted[:, i] for i in made if i is not None], 1).any(1))
        return torch.stack(copies, 1)

    def _masked(self, observed: Tensor, step: int | Tensor, which: int) -> Tensor:
        if not self.net.training:
            return observed
        while len(self._draws) <= which:
            self._draws.append(CounterRNG(self.seeds, self.name, "mask", len(self._draws)))
        rows, raw = observed.shape
        drawn = self._draws[which].uniform(step, rows, 1 + raw, observed.device)
        return drop_features(observed, drawn)

    def _complete(self, cue: Tensor, kept: Tensor, wanted: Tensor | None) -> Tensor:
        """Embed copies of the rows completed from their cues, beside what is kept of them.

        Cues, what is kept and the answer have a row for each copy; `wanted` is (B, copies).
        """
        copies = len(cue) // max(len(self._x), 1)
        reproduces = self.reconstruction > 0 and self.net.training
        looked_at = wanted
        if wanted is not None and reproduces:
            looked_at = wanted | self._observed.any(1, keepdim=True)
        completed = self._apply(self.net.completer, cue, looked_at)
        if reproduces:
            loss = self.reconstruction * copies * self._error(completed, copies)
            self.objective = loss if self.objective is None else self.objective + loss
        x = self.net.merged(_copies(self._x, copies), kept, completed)
        return self._apply(self.net.bottom, x, wanted)

    def _apply(self, net: nn.Module, x: Tensor, wanted: Tensor | None) -> Tensor:
        return apply_to_rows(partial(self.net.compute, net), wanted, x)

    def _error(self, completed: Tensor, copies: int) -> Tensor:
        target = self.net.spread(_copies(self._observed, copies)).expand_as(completed)
        weight = target.to(completed.dtype)
        error = (completed - _copies(self._x.detach(), copies)).square() * weight
        each = (len(self.seeds), -1)
        return (error.reshape(each).sum(1) / weight.reshape(each).sum(1).clamp(min=1)).sum()


def _nth(views: Sequence[View], view: View, which: int) -> int | None:
    """Find the place of a view's copy among the views."""
    places = [i for i, each in enumerate(views) if each == view]
    return places[which] if which < len(places) else None


def _beside(copies: Sequence[Tensor]) -> Tensor:
    """Put copies of the rows into one tensor, those of a row next to each other."""
    return copies[0] if len(copies) == 1 else torch.stack(tuple(copies), 1).flatten(0, 1)


def _copies(x: Tensor, count: int) -> Tensor:
    """Repeat every row, its copies next to each other: rows of a run stay together."""
    return x if count == 1 else x.repeat_interleave(count, 0)
