"""Subsets of parties, and Shapley values of the parties from a metric of each subset.

Shapes: k parties, m subsets, P orders of the parties, S bootstrap samples.
"""

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
Subset = tuple[int, ...]
MAX_SUBSETS = 256
"""More subsets than this are sampled: with more than 8 parties."""


@dataclass(frozen=True)
class Coalitions:
    """Subsets of parties to evaluate, and the orders of parties in which they grow.

    The Shapley value of a party is the mean, over orders, of what the party adds to those before
    it.
    """

    subsets: list[Subset]
    """The empty one first, that of all parties last."""
    orders: NDArray[np.int64]
    """(P, k) all orders of the parties if `exact`, else a random sample."""
    exact: bool

    def index(self, *parties: int) -> int:
        """Return the position of a subset."""
        return self.subsets.index(tuple(sorted(parties)))

    def shapley(self, values: Floats, rng: np.random.Generator) -> Floats:
        """Compute the Shapley values from the metric of every subset. (S, m) to (S, k)

        Sampled orders are resampled with the rows, so that intervals include their error; in
        sample 0 each order counts once.
        """
        if self.exact:
            return np.asarray(values @ shapley_weights(self.subsets).T)
        place = {subset: at for at, subset in enumerate(self.subsets)}
        count, k = self.orders.shape
        added = np.empty((len(values), count, k))
        for number, order in enumerate(self.orders.tolist()):
            path = [place[tuple(sorted(order[:size]))] for size in range(k + 1)]
            added[:, number, order] = np.diff(values[:, path], axis=1)
        weights = rng.multinomial(count, np.full(count, 1 / count), len(values)) / count
        weights[0] = 1 / count
        return np.asarray(np.einsum("sp,spk->sk", weights, added))


def coalitions(
    parties: int, rng: np.random.Generator, max_subsets: int = MAX_SUBSETS
) -> Coalitions:
    """List all subsets of the parties, or those of random orders where they are too many."""
    everyone = tuple(range(parties))
    if 2**parties <= max_subsets:
        sizes = range(parties + 1)
        subsets = [each for size in sizes for each in itertools.combinations(everyone, size)]
        return Coalitions(subsets, np.empty((0, parties), dtype=np.int64), exact=True)
    # An order and its reverse: their errors partly cancel.
    pairs = max(2, (max_subsets - 2 * parties - 2) // (2 * (parties - 1)))
    half = np.stack([rng.permutation(parties) for _ in range(pairs)])
    orders = np.concatenate([half, half[:, ::-1]])
    single = {(party,) for party in everyone}
    without = {tuple(each for each in everyone if each != party) for party in everyone}
    grown = {
        tuple(sorted(order[:size])) for order in orders.tolist() for size in range(parties + 1)
    }
    subsets = sorted(single | without | grown, key=lambda each: (len(each), each))
    return Coalitions(subsets, orders, exact=False)


def shapley_weights(subsets: list[Subset]) -> Floats:
    """Return the weight of each subset in each party's Shapley value, for all subsets. (k, m)"""
    k = len(subsets[-1])
    weights = np.zeros((k, len(subsets)))
    for at, subset in enumerate(subsets):
        size = len(subset)
        for party in range(k):
            if party in subset:
                weights[party, at] = 1 / (k * math.comb(k - 1, size - 1))
            else:
                weights[party, at] = -1 / (k * math.comb(k - 1, size))
    return weights
