"""Metrics of predicted probabilities and numbers; numpy only. Shapes: n rows, C classes."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.integer[Any]]


def accuracy(proba: Floats, y: Ints) -> float:
    """Return the share of rows whose most probable class is correct."""
    return float((proba.argmax(1) == y).mean())


def balanced_accuracy(proba: Floats, y: Ints) -> float:
    """Return the mean recall of the classes present."""
    correct = proba.argmax(1) == y
    return float(np.mean([correct[y == c].mean() for c in np.unique(y)]))


def auroc(proba: Floats, y: Ints) -> float:
    """Return the area under the ROC curve; for C > 2, the one-vs-rest mean of classes present."""
    present = [c for c in np.unique(y) if 0 < (y == c).sum() < len(y)]
    if proba.shape[1] == 2:
        present = [c for c in present if c == 1]
    return float(np.mean([_binary_auroc(proba[:, c], y == c) for c in present or [0]]))


def _binary_auroc(score: Floats, positive: NDArray[np.bool_]) -> float:
    if positive.all() or not positive.any():
        return float("nan")
    _, inverse, counts = np.unique(score, return_inverse=True, return_counts=True)
    rank = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    hits = int(positive.sum())
    pairs = rank[positive].sum() - hits * (hits + 1) / 2
    return float(pairs / (hits * (len(score) - hits)))


def nll(proba: Floats, y: Ints) -> float:
    """Return the mean negative log-likelihood of the true class."""
    likelihood = proba[np.arange(len(y)), y].astype(np.float64)
    return float(-np.log(np.clip(likelihood, 1e-12, 1)).mean())


def reliability(proba: Floats, y: Ints, bins: int = 15) -> list[tuple[int, float, float]]:
    """Return rows, mean confidence and accuracy of each bin of confidence that has rows."""
    confidence, correct = proba.max(1), proba.argmax(1) == y
    which = np.minimum((confidence * bins).astype(int), bins - 1)
    masks = [which == b for b in np.unique(which)]
    return [
        (int(mask.sum()), float(confidence[mask].mean()), float(correct[mask].mean()))
        for mask in masks
    ]


def ece(proba: Floats, y: Ints, bins: int = 15) -> float:
    """Return the expected calibration error: the mean gap of confidence and accuracy over bins."""
    table = reliability(proba, y, bins)
    return sum(abs(confidence - correct) * rows / len(y) for rows, confidence, correct in table)


def confusion(proba: Floats, y: Ints) -> NDArray[np.int64]:
    """Count rows by true and by most probable class. (C, C)"""
    counts = np.zeros((proba.shape[1],) * 2, dtype=np.int64)
    np.add.at(counts, (y, proba.argmax(1)), 1)
    return counts


def majority_rate(y: Ints) -> float:
    """Return the accuracy of always predicting the most frequent class: a baseline."""
    return float(np.bincount(y).max() / len(y))


METRICS = {metric.__name__: metric for metric in (accuracy, balanced_accuracy, auroc, nll, ece)}


def all_metrics(proba: Floats, y: Ints) -> dict[str, float]:
    """Compute every metric."""
    return {name: metric(proba, y) for name, metric in METRICS.items()}


def r2(predicted: Floats, y: Floats) -> float:
    """Return R²: 1 minus the squared error over that of the mean of these rows."""
    total = float(np.square(y - y.mean()).sum())
    return 1 - float(np.square(predicted - y).sum()) / total if total > 0 else float("nan")


def rmse(predicted: Floats, y: Floats) -> float:
    """Return the root of the mean squared error, in the units of the label."""
    return float(np.sqrt(np.square(predicted - y).mean()))


def mae(predicted: Floats, y: Floats) -> float:
    """Return the mean absolute error, in the units of the label."""
    return float(np.abs(predicted - y).mean())


REGRESSION_METRICS = {metric.__name__: metric for metric in (r2, rmse, mae)}


def regression_metrics(predicted: Floats, y: Floats) -> dict[str, float]:
    """Compute every metric of numbers (n,)."""
    return {name: metric(predicted, y) for name, metric in REGRESSION_METRICS.items()}
