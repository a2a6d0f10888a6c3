"""The demo's data: scikit-learn's digits, split between two parties, with missing features.

Shapes: N rows, k parties, p features per party.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.datasets import load_digits

PARTIES = ("left", "right")
N_FEATURES = 32
"""Pixels per party: half of 8 × 8."""


@dataclass(frozen=True)
class Digits:
    """The parties' tables and the labels, all indexed by id."""

    complete: dict[str, pd.DataFrame]
    """Tables without missing values."""
    observed: dict[str, pd.DataFrame]
    """The same tables with missing values (NaN)."""
    incomplete: pd.DataFrame
    """One column per party: True where the party's row was chosen to have missing values."""
    y: pd.Series

    def take(self, ids: pd.Index) -> "Digits":
        """Select rows by id."""
        return Digits(
            {name: table.loc[ids] for name, table in self.complete.items()},
            {name: table.loc[ids] for name, table in self.observed.items()},
            self.incomplete.loc[ids],
            self.y.loc[ids],
        )


def load_halves() -> tuple[dict[str, pd.DataFrame], pd.Series]:
    """Load the digits: the left half of each image for one party, the right half for the other."""
    images, y = load_digits(return_X_y=True)
    ids = pd.Index([f"digit-{row:04}" for row in range(len(y))], name="id")
    columns = [f"pixel {i}" for i in range(N_FEATURES)]
    halves = np.split(images.reshape(-1, 8, 8), len(PARTIES), axis=2)
    tables = {
        name: pd.DataFrame(half.reshape(len(y), N_FEATURES), index=ids, columns=columns)
        for name, half in zip(PARTIES, halves, strict=True)
    }
    return tables, pd.Series(y, index=ids, name="digit")


def sample_incomplete(rows: int, overlap: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Sample which of two parties is incomplete in each row; none in a share `overlap`. (N, k)"""
    incomplete = np.zeros((rows, len(PARTIES)), dtype=bool)
    incomplete[np.arange(rows), rng.integers(len(PARTIES), size=rows)] = True
    incomplete[rng.permutation(rows)[: round(overlap * rows)]] = False
    return incomplete


def sample_missing(
    rows: NDArray[np.bool_], rate: float, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Sample the missing features: round(rate · p) per incomplete row, uniformly. (N, p)"""
    rank = rng.random((len(rows), N_FEATURES)).argsort(axis=1).argsort(axis=1)
    return np.asarray((rank < round(rate * N_FEATURES)) & rows[:, None])


def digits_with_gaps(rate: float, overlap: float, test_fraction: float, seed: int) -> list[Digits]:
    """Sample a training and a test set.

    In a share `overlap` of the training rows every feature is observed at both parties. In the
    other training rows, and in all test rows, one party has a share `rate` of missing features.
    The rates of one seed share the split and the incomplete rows.
    """
    rng = np.random.default_rng(seed)
    complete, y = load_halves()
    order = rng.permutation(len(y))
    n_test = round(test_fraction * len(y))
    incomplete = sample_incomplete(len(y), 0.0, rng)
    train = order[n_test:]
    incomplete[train] = sample_incomplete(len(train), overlap, rng)
    observed = {
        name: complete[name].mask(sample_missing(incomplete[:, i], rate, rng))
        for i, name in enumerate(PARTIES)
    }
    flags = pd.DataFrame(incomplete, index=y.index, columns=list(PARTIES))
    rows = Digits(complete, observed, flags, y)
    return [rows.take(y.index[part]) for part in (train, order[:n_test])]
