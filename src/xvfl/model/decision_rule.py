"""Choose the predicted class from probabilities: the most probable one, or by a threshold.

A rule multiplies the probability of each class by a factor and takes the largest product. With two
classes this is a threshold t for the second one: its factors are t and 1 − t.
Shapes: n rows, C classes.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xvfl.errors import ConfigError, unknown
from xvfl.primitives.metrics import balanced_accuracy

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.integer[Any]]
CRITERIA = ("balanced_accuracy", "f1")
"""What a threshold can be chosen by, on validation rows."""


def predicted_classes(proba: Floats, factors: Sequence[float] | None) -> Ints:
    """Return the predicted class of each row. (n,)"""
    chosen: Ints = (proba if factors is None else proba * np.asarray(factors)).argmax(1)
    return chosen


def check_threshold(threshold: Any) -> None:
    """Reject what is neither a criterion nor a number between 0 and 1."""
    if threshold is None or (isinstance(threshold, str) and threshold in CRITERIA):
        return
    if isinstance(threshold, str):
        raise ConfigError(f"threshold: {unknown('criterion', threshold, CRITERIA)}")
    number = isinstance(threshold, int | float | np.number) and not isinstance(threshold, bool)
    if not number or not 0 < threshold < 1:
        raise ConfigError(f"threshold: expected a number between 0 and 1, got {threshold!r}")


def class_factors(
    threshold: float | str | None, proba: Floats, y: Ints, prior: Sequence[float]
) -> list[float] | None:
    """Choose the factors of the classes by validation rows; None takes the most probable class.

    With two classes, every threshold that separates two rows is tried. With more, the factors are
    1 over the class prior, which maximizes balanced accuracy if probabilities are right.
    """
    if threshold is None:
        return None
    several = proba.shape[1] > 2
    if several and threshold != "balanced_accuracy":
        raise ConfigError(
            f"threshold: expected None or 'balanced_accuracy' for {proba.shape[1]} classes, got "
            f"{threshold!r}"
        )
    if not isinstance(threshold, str):
        return [float(threshold), 1 - float(threshold)]
    if several:
        factors = [1 / max(share, 1e-12) for share in prior]
        plain = balanced_accuracy(proba, y)
        return factors if balanced_accuracy(proba * np.asarray(factors), y) > plain else None
    best = _best_threshold(proba[:, 1], y == 1, threshold)
    return [best, 1 - best]


def _best_threshold(score: Floats, positive: NDArray[np.bool_], criterion: str) -> float:
    """Try a threshold below every distinct score; of equal ones, the nearest to 1/2."""
    order = np.argsort(-score, kind="stable")
    hits = np.cumsum(positive[order])
    found = np.arange(1, len(score) + 1)
    total, others = int(positive.sum()), int((~positive).sum())
    last = np.append(score[order][1:] != score[order][:-1], True)
    if criterion == "f1":
        value = 2 * hits / (found + max(total, 1))
    else:
        value = (hits / max(total, 1) + 1 - (found - hits) / max(others, 1)) / 2
    below = np.append(score[order][1:], 0.0)
    thresholds = np.clip((score[order] + below) / 2, 1e-6, 1 - 1e-6)
    best = value[last].max()
    candidates = thresholds[last][value[last] >= best - 1e-12]
    return float(candidates[np.abs(candidates - 0.5).argmin()])
