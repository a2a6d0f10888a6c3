"""Missing features, drawn on purpose: scenarios for experiments, masks for training.

Shapes: N rows, k parties, p raw features of a party. True = observed.
"""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from xvfl.streams import stream


def drop_features(observed: Tensor, drawn: Tensor) -> Tensor:
    """Drop observed features of each row at a rate of its own. (B, p)

    `drawn` (B, 1 + p), in [0, 1): the row's rate, then a number for each of its features.
    """
    return observed & (drawn[:, 1:] >= drawn[:, :1])


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


def exact_gaps(rows: int, features: int, rate: float, rng: torch.Generator) -> Tensor:
    """Miss exactly round(rate · p) features of every row, uniformly drawn. (N, p)"""
    order = torch.rand(rows, features, generator=rng).argsort(1).argsort(1)
    return order >= round(rate * features)


def scenario(
    rows: int, features: Sequence[int], overlap: float, rate: float, seed: int
) -> tuple[list[Tensor], Tensor]:
    """Draw a scenario's masks: observed (N, p_i) of each party, and incomplete (N, k).

    The incomplete pairs depend on the seed alone, so that every rate hits the same rows. At rate 0
    nothing is missing, but the drawn pairs are still named.
    """
    incomplete = incomplete_parties(rows, len(features), overlap, stream("cpu", seed, "who"))
    observed = []
    for party, count in enumerate(features):
        gaps = exact_gaps(rows, count, rate, stream("cpu", seed, "what", party))
        observed.append(gaps | ~incomplete[:, party : party + 1])
    return observed, incomplete
