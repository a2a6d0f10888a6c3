"""Scores of attacks: label AUC of one class against the rest, and features recovered."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from xvfl.primitives.metrics import auroc, majority_rate
from xvfl.primitives.rows import PartyTable

Array = NDArray[np.floating[Any]]
Ints = NDArray[np.integer[Any]]
NUMERIC_TOLERANCE = 0.01
"""Largest error of a number in [0, 1] that counts as recovered."""


def class_auc(score: Array, y: Ints, label: int) -> float:
    """Return the AUC of a score for one class against the rest, with the better sign."""
    found = auroc(np.stack([-score, score], 1), (y == label).astype(np.int64))
    return 0.5 if np.isnan(found) else max(found, 1 - found)


@dataclass(frozen=True)
class FeatureScore:
    """How well the features of some rows were recovered; None where a kind does not occur."""

    r2: float | None
    """Mean R² of the numbers; a column that is worse than its mean counts as 0."""
    accuracy: float | None
    """Mean share of correct categories."""
    majority: float | None
    """The same for the most frequent category of each column: no knowledge."""
    rows_recovered: float
    """Share of rows with every category correct and every number within 0.01."""

    @property
    def total(self) -> float:
        """R² plus accuracy, to choose the better of two attacks."""
        return (self.r2 or 0.0) + (self.accuracy or 0.0)


def score_features(predicted: Tensor, table: PartyTable) -> FeatureScore:
    """Compare predicted values (m, dense) with a party's rows; only observed cells count."""
    r2, accuracy, majority = [], [], []
    exact = torch.ones(len(table), dtype=torch.bool)
    for place, columns, kind in value_columns(table):
        seen = table.observed[:, place]
        if int(seen.sum()) < 2:
            continue
        true, guess = table.values.flatten(1)[:, columns], predicted[:, columns]
        if kind == "category":
            right = true.argmax(1) == guess.argmax(1)
            accuracy.append(float(right[seen].float().mean()))
            majority.append(majority_rate(true[seen].argmax(1).numpy()))
        else:
            right = ((true - guess).abs() <= NUMERIC_TOLERANCE).all(1)
            variance = true[seen].var(0, unbiased=False)
            error = (true - guess)[seen].square().mean(0)
            varies = variance > 1e-8
            if bool(varies.any()):
                explained = 1 - error[varies] / variance[varies]
                r2.append(float(explained.clamp(min=0).mean()))
        exact &= right | ~seen
    return FeatureScore(
        float(np.mean(r2)) if r2 else None,
        float(np.mean(accuracy)) if accuracy else None,
        float(np.mean(majority)) if majority else None,
        float(exact.float().mean()),
    )


def value_columns(table: PartyTable) -> Sequence[tuple[int, list[int], str]]:
    """List the features stored as numbers: raw feature, its columns, its kind.

    Hashed categories are left out: an embedding shows their learned vectors, not their values.
    """
    if table.layout.image is not None:
        channels, height, width = table.layout.image
        size = height * width
        return [(i, [i + c * size for c in range(channels)], "numeric") for i in range(size)]
    found, at = [], 0
    for place, feature in enumerate(table.layout.features):
        if feature.kind != "hashed":
            found.append((place, list(range(at, at + feature.width)), feature.kind))
            at += feature.width
    return found
