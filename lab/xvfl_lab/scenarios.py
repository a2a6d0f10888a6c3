"""Missing features, drawn on purpose: scenarios for experiments, masks for training.

Shapes: N rows, k parties, p raw features of a party. True = observed.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from xvfl.errors import ConfigError, unknown
from xvfl.primitives.layout import Feature, Layout
from xvfl.primitives.random import named_generator

Kind = Literal["uniform", "above", "blocks"]
KINDS: tuple[Kind, ...] = ("uniform", "above", "blocks")
PATCH = 4
"""Side of the square patches in which images go missing, in pixels."""


@dataclass(frozen=True)
class Scenario:
    """Who is incomplete in which rows, and what is missing there."""

    overlap: float
    """Share of rows that are aligned: complete at every party."""
    rate: float
    """R_miss: share of its raw features that a party misses in an incomplete row."""
    kind: Kind = "uniform"
    """`uniform`: any feature alike. `above`: not at random, the largest values of each feature.
    `blocks`: neighbouring columns together, or square patches of an image."""
    imbalance: float | None = None
    """Two parties only: the first one's part of all the rows held in full; 0.8 means 80 : 20."""

    def __post_init__(self) -> None:
        for name, share in (("overlap", self.overlap), ("rate", self.rate)):
            if not 0 <= share <= 1:
                raise ConfigError(f"scenario: expected {name} from 0 to 1, got {share}")
        if self.kind not in KINDS:
            raise ConfigError(f"scenario: {unknown('kind', self.kind, KINDS)}")
        if self.imbalance is None:
            return
        if not 0 < self.imbalance < 1:
            raise ConfigError(f"scenario: expected imbalance between 0 and 1, got {self.imbalance}")
        poor = min(self.imbalance, 1 - self.imbalance)
        most = poor / (1 - poor)
        if self.overlap > most + 1e-9:
            raise ConfigError(
                f"scenario: parties that hold rows {self.imbalance:g} : {1 - self.imbalance:g} "
                f"cannot share more than {most:g} of them, got overlap {self.overlap:g}; lower it"
            )

    def who(self, rows: int, parties: int, seed: int) -> Tensor:
        """Draw who is incomplete in which row; every rate and kind hits the same rows. (N, k)"""
        rng = named_generator("cpu", seed, "who")
        if self.imbalance is None:
            return incomplete_parties(rows, parties, self.overlap, rng)
        if parties != 2:
            raise ConfigError(f"scenario: imbalance is for two parties, got {parties}")
        return unequal_parties(rows, self.overlap, self.imbalance, rng)

    def draw(
        self,
        rows: int,
        layouts: Sequence[Layout],
        seed: int,
        values: Sequence[Tensor] | None = None,
    ) -> tuple[list[Tensor], Tensor]:
        """Draw the masks: observed (N, p_i) of each party, and incomplete (N, k).

        At rate 0 nothing is missing, but the drawn pairs are still named. `values`, for `above`
        alone: (N, p_i) of each party, NaN where a feature is naturally missing.
        """
        if self.kind == "above" and values is None:
            raise ConfigError("scenario: kind 'above' goes by the features' values; give them")
        incomplete = self.who(rows, len(layouts), seed)
        observed = []
        for party, layout in enumerate(layouts):
            here = incomplete[:, party]
            rng = named_generator("cpu", seed, "what", party)
            if self.kind == "above":
                assert values is not None
                kept = torch.ones(rows, layout.raw, dtype=torch.bool)
                kept[here] = smallest_values(values[party][here], self.rate, rng)
            elif self.kind == "blocks":
                kept = block_gaps(rows, blocks(layout), self.rate, rng)
            else:
                kept = exact_gaps(rows, layout.raw, self.rate, rng, here)
            observed.append(kept | ~here.unsqueeze(1))
        return observed, incomplete


def incomplete_parties(rows: int, parties: int, overlap: float, rng: torch.Generator) -> Tensor:
    """Draw who is incomplete in which row. (N, k)

    round(overlap · N) rows are aligned; in each other row a uniformly drawn non-empty proper
    subset of the parties is incomplete.
    """
    subsets = [s for s in itertools.product([False, True], repeat=parties) if 0 < sum(s) < parties]
    choices = torch.tensor(subsets)
    drawn = choices[torch.randint(len(choices), (rows,), generator=rng)]
    aligned = torch.randperm(rows, generator=rng)[: round(overlap * rows)]
    drawn[aligned] = False
    return drawn


def unequal_parties(rows: int, overlap: float, share: float, rng: torch.Generator) -> Tensor:
    """Draw who is incomplete where two parties hold rows in full in the ratio share : 1 - share.

    Every row is full at one party or both, so the parties hold (1 + overlap) · N rows in all:
    the first one round(share · (1 + overlap) · N) of them, and round(overlap · N) are aligned.
    """
    order = torch.randperm(rows, generator=rng)
    aligned = round(overlap * rows)
    full = min(max(round(share * (1 + overlap) * rows), aligned), rows)
    drawn = torch.zeros(rows, 2, dtype=torch.bool)
    drawn[order[aligned:full], 1] = True
    drawn[order[full:], 0] = True
    return drawn


def exact_gaps(
    rows: int, features: int, rate: float, rng: torch.Generator, here: Tensor | None = None
) -> Tensor:
    """Miss exactly round(rate · p) features of every row, uniformly drawn. (N, p)

    With `here` (N,) only of those rows, and of each the same as if it were of all.
    """
    drawn = torch.rand(rows, features, generator=rng)
    kept = torch.ones(rows, features, dtype=torch.bool)
    some = torch.arange(rows) if here is None else here.nonzero().squeeze(1)
    first = drawn[some].argsort(1)[:, : round(rate * features)]
    kept[some] = kept[some].scatter(1, first, False)
    return kept


def smallest_values(values: Tensor, rate: float, rng: torch.Generator) -> Tensor:
    """Miss the largest values of every feature, exactly round(rate · n) of its n known ones. (N, p)

    This is a threshold at the quantile that gives the rate; equal values go in a drawn order.
    """
    order = torch.rand(values.shape, generator=rng).argsort(0)
    shuffled = values.gather(0, order).nan_to_num(nan=-torch.inf)
    ascending = order.gather(0, shuffled.sort(dim=0, stable=True).indices)
    position = torch.arange(len(values)).unsqueeze(1).expand(values.shape)
    rank = torch.empty_like(ascending).scatter_(0, ascending, position)
    known = (~values.isnan()).sum(0)
    missing = torch.tensor([round(rate * int(count)) for count in known], dtype=torch.long)
    return rank < len(values) - missing


def block_gaps(rows: int, group: Tensor, rate: float, rng: torch.Generator) -> Tensor:
    """Miss whole blocks of every row, exactly round(rate · p) features. (N, p)

    ConcatHead go missing in a drawn order until that many features are gone; the last is cut.
    """
    count = int(group.max()) + 1
    turn = torch.rand(rows, count, generator=rng).argsort(1).argsort(1)
    inside = torch.rand(rows, len(group), generator=rng, dtype=torch.float64)
    order = (turn[:, group] + inside).argsort(1).argsort(1)
    return order >= round(rate * len(group))


def blocks(layout: Layout) -> Tensor:
    """Say which block each raw feature is in. (p,)

    An image: squares of 4 × 4 pixels. A table of p columns: about √p neighbours a block.
    """
    if layout.image is not None:
        _, height, width = layout.image
        down, across = (torch.arange(side) // PATCH for side in (height, width))
        return (down.unsqueeze(1) * (int(across[-1]) + 1) + across).flatten()
    return torch.div(torch.arange(layout.raw), round(layout.raw**0.5), rounding_mode="floor")


def scenario(
    rows: int, features: Sequence[int], overlap: float, rate: float, seed: int
) -> tuple[list[Tensor], Tensor]:
    """Draw the masks of features that go missing uniformly, by their numbers alone."""
    layouts = [Layout(tuple(Feature(str(i), "numeric", 1) for i in range(p))) for p in features]
    return Scenario(overlap, rate).draw(rows, layouts, seed)
