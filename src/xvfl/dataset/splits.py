"""Split rows into training, validation and test rows, and weight them in the loss.

Validation and test rows are labeled. Unlabeled rows, if a dataset has them, are training rows.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from xvfl.errors import InputError, warn
from xvfl.primitives.mixed_order import row_weights
from xvfl.primitives.random import named_generator
from xvfl.primitives.rows import Rows

Parts = tuple[Tensor, Tensor, Tensor]
"""Row numbers to train, validate and test on."""


@dataclass(frozen=True)
class RowCounts:
    """How many rows are used, and for what."""

    labeled: int
    """Labeled training rows."""
    unlabeled: int
    """Unlabeled training rows."""
    validation: int
    test: int

    def __str__(self) -> str:
        others = f" and {self.unlabeled} unlabeled" if self.unlabeled else ""
        return f"{self.labeled} labeled{others} rows"


@dataclass(frozen=True)
class Splits:
    """Fractions of a stratified split."""

    test: float
    """Of all labeled rows."""
    validation: float
    """Of the rows that are not test rows."""
    seed: int

    def sizes(self, rows: int) -> tuple[int, int, int]:
        """Return how many rows of a class train, validate and test."""
        test = round(self.test * rows)
        validation = round(self.validation * (rows - test))
        return rows - test - validation, validation, test


def split(y: Tensor, splits: Splits) -> Parts:
    """Split rows at random, class by class; unlabeled rows train."""
    parts: tuple[list[Tensor], ...] = ([], [], [])
    for label in range(int(y.max()) + 1):
        rows = (y == label).nonzero().flatten()
        rng = named_generator("cpu", splits.seed, "split", label)
        rows = rows[torch.randperm(len(rows), generator=rng)]
        split_rows = torch.split(rows, list(splits.sizes(len(rows))))
        for part, rows_of_class in zip(parts, split_rows, strict=True):
            part.append(rows_of_class)
    parts[0].append((y < 0).nonzero().flatten())
    train, validation, test = (torch.cat(part).sort().values for part in parts)
    return train, validation, test


def drop_unobserved(
    rows: Rows, parts: Parts, class_weight: str, min_classes: int = 2
) -> tuple[Rows, Parts]:
    """Drop rows without any observed feature from the parts; weight the others.

    Rows with numbers are rows of one class, 0.
    """
    observed = rows.seen.any(1)
    train, validation, test = (part[observed[part]] for part in parts)
    counts = count_classes(rows.y[train], int(rows.y.max()) + 1)
    check_split(counts, len(validation), int((~observed).sum()), min_classes)
    unlabeled = len(train) - int(counts.sum())
    weights = torch.tensor(label_weights(counts, unlabeled, class_weight))
    return replace(rows, weight=weights[rows.y]), (train, validation, test)


def count_classes(y: Tensor, classes: int) -> NDArray[np.int64]:
    """Count the rows of each class."""
    counts: NDArray[np.int64] = torch.bincount(y[y >= 0], minlength=classes).numpy()
    return counts


def check_split(
    train: NDArray[np.int64], validation: int, unobserved: int, min_classes: int = 2
) -> None:
    """Warn about rows without observed features; reject a split that cannot be trained on.

    `train` counts the training rows of each class.
    """
    if unobserved:
        warn(
            f"{unobserved} rows have no observed feature at any party and were excluded from "
            "training"
        )
    if int((train > 0).sum()) < min_classes:
        expected = "two classes or more" if min_classes > 1 else "labeled rows"
        raise InputError(f"expected {expected} among the training rows; add rows")
    if not validation:
        raise InputError(
            "the validation set is empty: `validation_fraction` rounds to 0 rows in every class; "
            "add rows or increase `validation_fraction`"
        )


def label_weights(train: NDArray[np.int64], unlabeled: int, class_weight: str) -> tuple[float, ...]:
    """Return the weight of a row of each class in the loss; the last is that of unlabeled rows."""
    labeled_weight, unlabeled_weight = row_weights(int(train.sum()), unlabeled)
    by_class = class_weights(train, class_weight) * labeled_weight
    return (*by_class.tolist(), unlabeled_weight)


def class_weights(train: NDArray[np.int64], class_weight: str) -> NDArray[np.float64]:
    """Return the weight of each class in the loss, from its number of training rows."""
    if class_weight != "balanced":
        return np.ones(len(train))
    present = train > 0
    balanced = train.sum() / (train.clip(min=1) * int(present.sum()))
    return np.where(present, balanced, 1.0)
