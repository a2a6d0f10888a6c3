"""Prepared rows: a party's encoded rows, and the coordinator's view of all parties' rows.

Rows are counted in two ways. A place is the number of a row among the rows of the federation. A
handle is the number under which a party stores the row: the row number of its table in memory, or
the place if its encoded rows are on disk; −1 means that the party does not hold the row.

Shapes: N rows of the federation, n rows of one party, B rows of a batch, k parties.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from xvfl.maths import is_labeled
from xvfl.primitives.layout import Layout
from xvfl.primitives.mixed_order import Stream, epoch_size, labeled_share, mix
from xvfl.primitives.random import named_generator


class Table(Protocol):
    """A party's encoded rows, in memory or on disk."""

    def __len__(self) -> int: ...

    @property
    def device(self) -> torch.device:
        """The device of the rows that `take` returns."""

    def take(self, handles: Tensor) -> "PartyTable":
        """Select the rows at the handles; handle −1 is a row that the party does not hold."""

    def to(self, device: torch.device) -> "Table":
        """Return the table with its rows on a device."""


class RowSource(Protocol):
    """The coordinator's view of rows, in memory or on disk."""

    def __len__(self) -> int: ...

    @property
    def device(self) -> torch.device:
        """The device of the rows that `take` returns."""

    @property
    def epoch_size(self) -> int:
        """Number of rows of an epoch of one run."""

    @property
    def unlabeled_share(self) -> float:
        """Share of the rows that have no label."""

    def take(self, index: Tensor, step: int | Tensor = 0) -> "Rows":
        """Select the rows at the index, as the batch of a step."""

    def order(self, seeds: Sequence[int], epoch: int) -> Callable[[int, int], Tensor]:
        """Shuffle an epoch of each run; return a function of the start and stop of a batch."""


@dataclass(frozen=True)
class PartyTable:
    """One party's encoded rows in memory; they stay with the party."""

    layout: Layout
    values: Tensor
    """(n, dense) numbers, or (n, channels, height, width) for images; 0 where missing."""
    codes: Tensor
    """(n, hashed) codes of the hashed features; 0 where missing, rare or unseen."""
    observed: Tensor
    """(n, raw) bool: which raw features are observed."""

    def __len__(self) -> int:
        return len(self.values)

    @property
    def device(self) -> torch.device:
        """The device of the rows."""
        return self.values.device

    def take(self, handles: Tensor) -> "PartyTable":
        """Select the rows at the handles; handle −1 is a row that the party does not hold."""
        if not len(self) or not len(handles):
            return self._empty(len(handles))
        # On a GPU, this check would synchronize with the device.
        if handles.device.type == "cpu" and int(handles.min()) >= 0:
            return self._at(handles)
        rows = self._at(handles.clamp(min=0))
        return replace(rows, observed=rows.observed & (handles >= 0).unsqueeze(1))

    def _at(self, places: Tensor) -> "PartyTable":
        return PartyTable(self.layout, *(part.index_select(0, places) for part in self._parts()))

    def _empty(self, rows: int) -> "PartyTable":
        parts = (part.new_zeros(rows, *part.shape[1:]) for part in self._parts())
        return PartyTable(self.layout, *parts)

    def to(self, device: torch.device) -> "PartyTable":
        """Move the rows to a device."""
        return PartyTable(self.layout, *(part.to(device) for part in self._parts()))

    def _parts(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.values, self.codes, self.observed


@dataclass(frozen=True)
class Rows:
    """The coordinator's view of rows: which party holds them, how completely, and their labels.

    A dataset and a batch of it have the same form.

    Parameters
    ----------
    handles : Tensor of shape (N, k)
        The row number at each party, −1 where it does not hold the row. In a batch of rows on disk
        they stay on the CPU, where the tables are read.
    full : bool Tensor of shape (N, k)
        Whether the row is full at the party: the observed share of its features reaches
        `full_threshold`.
    seen : bool Tensor of shape (N, k)
        Whether the party observed any feature of the row.
    y : Tensor of shape (N,)
        The class numbers, −1 where unknown; or, for regression, standardized numbers of a floating
        dtype, NaN where unknown.
    weight : Tensor of shape (N,)
        The weight of the row in the loss.
    step : int or Tensor, default=0
        The training step; it seeds the random numbers of the batch.
    runs : int, default=1
        The number of stacked runs: the first N/runs rows belong to run 0, and so on.
    completing : bool, default=True
        Whether a training step on this batch completes features.
    """

    handles: Tensor
    full: Tensor
    seen: Tensor
    y: Tensor
    weight: Tensor
    step: int | Tensor = 0
    runs: int = 1
    completing: bool = True

    def __len__(self) -> int:
        return len(self.y)

    @property
    def device(self) -> torch.device:
        """The device of the rows."""
        return self.y.device

    @property
    def labeled(self) -> Tensor:
        """Which rows have a label. (N,)"""
        return is_labeled(self.y)

    @property
    def epoch_size(self) -> int:
        """Number of rows of an epoch of one run; runs have the same number of labeled rows."""
        labeled = int(self.labeled.sum())
        return epoch_size(labeled // self.runs, (len(self) - labeled) // self.runs)

    @property
    def unlabeled_share(self) -> float:
        """Share of the rows that have no label."""
        return int((~self.labeled).sum()) / max(len(self), 1)

    def take(self, index: Tensor, step: int | Tensor = 0) -> "Rows":
        """Select the rows at the index, as the batch of a step."""
        return self._map(lambda part: part.index_select(0, index), step)

    def order(self, seeds: Sequence[int], epoch: int) -> Callable[[int, int], Tensor]:
        """Shuffle the rows of each run; return a function of the start and stop of a batch.

        Each batch has the same share of labeled rows (`xvfl.primitives.mixed_order`).
        """
        labeled = self.labeled.cpu().view(len(seeds), -1)
        count = labeled.shape[1]
        orders = [
            _shuffle(labeled[run], seed, epoch) + run * count for run, seed in enumerate(seeds)
        ]
        order = torch.stack(orders).to(self.device)
        return lambda start, stop: order[:, start:stop].flatten()

    def repeat_for_members(self, members: int) -> "Rows":
        """Repeat the rows of each run for each of its members, as if members were runs."""

        def repeat(part: Tensor) -> Tensor:
            by_run = part.view(self.runs, 1, len(self) // self.runs, *part.shape[1:])
            return by_run.expand(-1, members, *by_run.shape[2:]).flatten(0, 2)

        return replace(self._map(repeat, self.step), runs=self.runs * members)

    def first_of_members(self, members: int) -> "Rows":
        """Undo `repeat_for_members`."""

        def first(part: Tensor) -> Tensor:
            by_run = part.view(self.runs // members, members, -1, *part.shape[1:])
            return by_run[:, 0].flatten(0, 1)

        return replace(self._map(first, self.step), runs=self.runs // members)

    def first_run(self) -> "Rows":
        """Select the rows of the first run."""
        if self.runs == 1:
            return self
        count = len(self) // self.runs
        return replace(self._map(lambda part: part[:count], self.step), runs=1)

    def select_parties(self, parties: Sequence[int]) -> "Rows":
        """Select the available parties; rows that none of them observed get weight 0."""
        at = list(parties)
        seen = self.seen[:, at]
        return replace(
            self,
            handles=self.handles[:, at],
            full=self.full[:, at],
            seen=seen,
            weight=self.weight * seen.any(1),
        )

    def only_labeled(self) -> "Rows":
        """Select the rows with a label, weighted as if there were no others; of one run."""
        index = self.labeled.nonzero().flatten()
        share = float(labeled_share(len(index), len(self) - len(index)))
        rows = self.take(index)
        return replace(rows, weight=rows.weight * share)

    def hide_missing(self) -> "Rows":
        """Treat all rows that a party holds as full, for differential privacy."""
        held = (self.handles >= 0).to(self.device)
        return replace(self, full=held, seen=held)

    def to(self, device: torch.device) -> "Rows":
        """Move the rows to a device."""
        return self._map(lambda part: part.to(device), self.step)

    def _map(self, f: Callable[[Tensor], Tensor], step: int | Tensor) -> "Rows":
        return replace(
            self,
            handles=f(self.handles),
            full=f(self.full),
            seen=f(self.seen),
            y=f(self.y),
            weight=f(self.weight),
            step=step,
        )


def _shuffle(labeled: Tensor, seed: int, epoch: int) -> Tensor:
    """Order the rows of an epoch. (N,)"""

    def shuffled(rows: Tensor, *key: int | str) -> Stream:
        rng = named_generator("cpu", seed, "order", epoch, *key)
        order = rows[torch.randperm(len(rows), generator=rng)]
        return lambda start, stop: order[start:stop]

    count, some = len(labeled), labeled.nonzero().flatten()
    if len(some) == count:
        return shuffled(torch.arange(count))(0, count)
    rest = (~labeled).nonzero().flatten()
    sizes = len(some), len(rest)
    mixed = mix(shuffled(some), shuffled(rest, "unlabeled"), labeled_share(*sizes))
    return mixed(0, epoch_size(*sizes))


def align_rows(handles: Tensor, levels: Sequence[Tensor], y: Tensor | None = None) -> Rows:
    """Combine each party's observation levels into the coordinator's rows, all of weight 1.

    `handles` (N, k) are the row numbers at each party, −1 where it does not hold the row; `levels`
    are those of `observation_levels` for each party's rows.
    """
    # Handle −1 selects the zero appended at the end.
    aligned = torch.stack(
        [torch.cat([own, own.new_zeros(1)])[handles[:, i].long()] for i, own in enumerate(levels)],
        1,
    )
    labels = torch.full((len(handles),), -1) if y is None else y
    return Rows(handles, aligned == 2, aligned >= 1, labels, torch.ones(len(handles)))


FULL = 2
"""Observation level of a full row."""


def observation_levels(observed: Tensor, full_threshold: float) -> Tensor:
    """Grade each row of a party: 0 nothing observed, 1 partly observed, 2 full. (n,) uint8"""
    full = is_full(observed, full_threshold)
    return observed.any(1).to(torch.uint8) + full.to(torch.uint8)


def choose_full_threshold(observed: Tensor) -> float:
    """Choose `full_threshold`: the largest observed share that half of the rows reach."""
    raw = observed.shape[1]
    return full_threshold_from_counts(torch.bincount(observed.sum(1), minlength=raw + 1))


def full_threshold_from_counts(rows: Tensor) -> float:
    """Choose `full_threshold` from a histogram of rows.

    Entry j counts the rows with j observed features.
    """
    raw = len(rows) - 1
    reached = rows.flip(0).cumsum(0)
    median = (int(rows.sum()) - 1) // 2
    observed = raw - int(torch.searchsorted(reached, median, right=True))
    return float(torch.tensor(observed).float() / raw)


def is_full(observed: Tensor, full_threshold: float) -> Tensor:
    """Tell which rows are full at a party: enough of their raw features are observed."""
    share = observed.float().mean(1)
    return (share >= full_threshold - 1e-6) & observed.any(1)
