"""Simulated missing features: scenarios of the experiments.

Shapes: N rows, k parties, p raw features of a party. True = observed.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from xvfl.errors import ConfigError, unknown
from xvfl.primitives.layout import Layout
from xvfl.primitives.random import named_generator

Kind = Literal["uniform", "above", "blocks"]
KINDS: tuple[Kind, ...] = ("uniform", "above", "blocks")
PATCH = 4
"""Side of the square patches of missing pixels."""


@dataclass(frozen=True)
class Scenario:
    """Which parties are incomplete in which rows, and which features are missing there."""

    overlap: float
    """Fraction of aligned rows: complete at every party."""
    rate: float
    """R_miss: fraction of its raw features that a party misses in an incomplete row."""
    kind: Kind = "uniform"
    """`uniform`: any feature with equal probability. `above`: not at random, the largest values of
    each feature. `blocks`: neighboring columns together, or square patches of an image."""
    imbalance: float | None = None
    """Two parties only: the first party's share of all full rows; 0.8 means 80 : 20."""

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
        smaller = min(self.imbalance, 1 - self.imbalance)
        most = smaller / (1 - smaller)
        if self.overlap > most + 1e-9:
            raise ConfigError(
                f"scenario: with full rows {self.imbalance:g} : {1 - self.imbalance:g} the overlap "
                f"is at most {most:g}, got {self.overlap:g}; lower it"
            )

    def incomplete(self, rows: int, parties: int, seed: int) -> Tensor:
        """Sample who is incomplete in which row; the same rows for every rate and kind. (N, k)"""
        rng = named_generator("cpu", seed, "who")
        if self.imbalance is None:
            return incomplete_parties(rows, parties, self.overlap, rng)
        if parties != 2:
            raise ConfigError(f"scenario: imbalance needs two parties, got {parties}")
        return imbalanced_parties(rows, self.overlap, self.imbalance, rng)

    def sample(
        self,
        rows: int,
        layouts: Sequence[Layout],
        seed: int,
        values: Sequence[Tensor] | None = None,
    ) -> tuple[list[Tensor], Tensor]:
        """Sample the masks: observed (N, p_i) of each party, and incomplete (N, k).

        At rate 0 nothing is missing; `incomplete` still marks the sampled pairs. `values` is for
        `above` alone: (N, p_i) of each party, NaN where a feature is naturally missing.
        """
        if self.kind == "above" and values is None:
            raise ConfigError("scenario: kind 'above' needs the values of the features")
        incomplete = self.incomplete(rows, len(layouts), seed)
        masks = []
        for party, layout in enumerate(layouts):
            here = incomplete[:, party]
            rng = named_generator("cpu", seed, "what", party)
            if self.kind == "above":
                assert values is not None
                observed = torch.ones(rows, layout.raw, dtype=torch.bool)
                observed[here] = hide_largest(values[party][here], self.rate, rng)
            elif self.kind == "blocks":
                observed = hide_blocks(rows, blocks(layout), self.rate, rng)
            else:
                observed = hide_uniformly(rows, layout.raw, self.rate, rng, here)
            masks.append(observed | ~here.unsqueeze(1))
        return masks, incomplete


def incomplete_parties(rows: int, parties: int, overlap: float, rng: torch.Generator) -> Tensor:
    """Sample who is incomplete in which row. (N, k)

    round(overlap · N) rows are aligned; in each other row a uniformly sampled non-empty proper
    subset of the parties is incomplete. A party alone is never incomplete.
    """
    if parties == 1:
        return torch.zeros(rows, 1, dtype=torch.bool)
    subsets = [s for s in itertools.product([False, True], repeat=parties) if 0 < sum(s) < parties]
    choices = torch.tensor(subsets)
    incomplete = choices[torch.randint(len(choices), (rows,), generator=rng)]
    aligned = torch.randperm(rows, generator=rng)[: round(overlap * rows)]
    incomplete[aligned] = False
    return incomplete


def imbalanced_parties(rows: int, overlap: float, share: float, rng: torch.Generator) -> Tensor:
    """Sample who is incomplete if two parties hold full rows in the ratio share : 1 - share.

    Every row is full at one party or both, so the parties hold (1 + overlap) · N full rows in all:
    the first round(share · (1 + overlap) · N) of them; round(overlap · N) rows are aligned.
    """
    order = torch.randperm(rows, generator=rng)
    aligned = round(overlap * rows)
    full = min(max(round(share * (1 + overlap) * rows), aligned), rows)
    incomplete = torch.zeros(rows, 2, dtype=torch.bool)
    incomplete[order[aligned:full], 1] = True
    incomplete[order[full:], 0] = True
    return incomplete


def hide_uniformly(
    rows: int, features: int, rate: float, rng: torch.Generator, here: Tensor | None = None
) -> Tensor:
    """Hide exactly round(rate · p) features of every row, uniformly at random. (N, p)

    With `here` (N,), hide features of these rows only, the same as without `here`.
    """
    random = torch.rand(rows, features, generator=rng)
    observed = torch.ones(rows, features, dtype=torch.bool)
    selected = torch.arange(rows) if here is None else here.nonzero().squeeze(1)
    first = random[selected].argsort(1)[:, : round(rate * features)]
    observed[selected] = observed[selected].scatter(1, first, False)
    return observed


def hide_largest(values: Tensor, rate: float, rng: torch.Generator) -> Tensor:
    """Hide the largest values of every feature, exactly round(rate · n) of its n values. (N, p)

    This is a threshold at the quantile that gives the rate; ties are broken at random.
    """
    order = torch.rand(values.shape, generator=rng).argsort(0)
    shuffled = values.gather(0, order).nan_to_num(nan=-torch.inf)
    ascending = order.gather(0, shuffled.sort(dim=0, stable=True).indices)
    position = torch.arange(len(values)).unsqueeze(1).expand(values.shape)
    rank = torch.empty_like(ascending).scatter_(0, ascending, position)
    counts = (~values.isnan()).sum(0)
    missing = torch.tensor([round(rate * int(count)) for count in counts], dtype=torch.long)
    return rank < len(values) - missing


def hide_blocks(rows: int, group: Tensor, rate: float, rng: torch.Generator) -> Tensor:
    """Hide whole blocks of every row, exactly round(rate · p) features. (N, p)

    Blocks are hidden in random order until that many features are missing; the last one partly.
    """
    count = int(group.max()) + 1
    turn = torch.rand(rows, count, generator=rng).argsort(1).argsort(1)
    inside = torch.rand(rows, len(group), generator=rng, dtype=torch.float64)
    order = (turn[:, group] + inside).argsort(1).argsort(1)
    return order >= round(rate * len(group))


def blocks(layout: Layout) -> Tensor:
    """Return the block of each raw feature. (p,)

    An image: squares of 4 × 4 pixels. A table of p columns: about √p neighbors a block.
    """
    if layout.image is not None:
        _, height, width = layout.image
        down, across = (torch.arange(side) // PATCH for side in (height, width))
        return (down.unsqueeze(1) * (int(across[-1]) + 1) + across).flatten()
    return torch.div(torch.arange(layout.raw), round(layout.raw**0.5), rounding_mode="floor")
