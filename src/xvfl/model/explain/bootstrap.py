"""Metrics on bootstrap samples of rows, and their intervals.

Shapes: n rows, C outputs, S samples. Sample 0 has every row once, so that its metric is the value
on the given rows. A greater metric is better.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xvfl.errors import InputError, unknown
from xvfl.primitives.task import Task

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.integer[Any]]
Bools = NDArray[np.bool_]
LEVEL = 0.95
"""Coverage of each interval, or of all intervals together where they hold jointly."""
CHUNK = 50
"""Samples that are computed at once; bounds the memory."""


@dataclass(frozen=True)
class Estimate:
    """A value and its 95 % bootstrap interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, samples: Floats) -> "Estimate":
        """Build an estimate from the value of sample 0 and the quantiles of the others."""
        value, others = float(samples[0]), samples[1:][np.isfinite(samples[1:])]
        if not len(others):
            return cls(value, float("nan"), float("nan"))
        tail = (1 - LEVEL) / 2
        low, high = np.quantile(others, [tail, 1 - tail])
        return cls(value, float(low), float(high))

    @classmethod
    def joint(cls, samples: Floats, at_most: float = np.inf) -> list["Estimate"]:
        """Build one estimate for each column, with 95 % intervals that hold jointly for all.

        The intervals are the values ± c standard errors (max-t bootstrap): c is the 95 % quantile,
        over the samples, of the largest deviation of a column in standard errors. Unlike quantiles
        far out in the tails, c needs few samples, also for many columns. (S + 1, k)

        Intervals end at `at_most`, the largest possible value.
        """
        values, others = samples[0], samples[1:][np.isfinite(samples[1:]).all(1)]
        if not len(others):
            return [cls(float(value), float("nan"), float("nan")) for value in values]
        errors = others.std(0)
        deviations = np.abs(others - values) / np.where(errors > 0, errors, np.inf)
        half = np.quantile(deviations.max(1), LEVEL) * errors
        low, high = values - half, np.minimum(values + half, np.maximum(values, at_most))
        return [
            cls(*each) for each in zip(values.tolist(), low.tolist(), high.tolist(), strict=True)
        ]

    @property
    def is_zero(self) -> bool:
        """Whether the interval contains 0."""
        return not (self.low > 0 or self.high < 0)


def sample_rows(rows: int, samples: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Count how often each row is in each of the samples, and once in sample 0. (S + 1, n)"""
    counts = np.ones((samples + 1, rows), dtype=np.float32, order="F")
    for each in counts[1:]:
        each[:] = np.bincount(rng.integers(0, rows, rows), minlength=rows)
    return counts


def accuracy(proba: Floats, y: Ints, counts: Floats) -> Floats:
    """Return the accuracy on each sample. (S,)"""
    correct = (proba.argmax(1) == y).astype(np.float64)
    return np.asarray(counts @ correct / counts.sum(1, dtype=np.float64))


def log_loss(proba: Floats, y: Ints, counts: Floats) -> Floats:
    """Return the mean log-likelihood of the true class on each sample. (S,)"""
    likelihood = np.clip(proba[np.arange(len(y)), y].astype(np.float64), 1e-12, 1)
    return np.asarray(counts @ np.log(likelihood) / counts.sum(1, dtype=np.float64))


def auroc(proba: Floats, y: Ints, counts: Floats) -> Floats:
    """Return the AUROC on each sample; for C > 2, the one-vs-rest mean of classes present. (S,)"""
    present = [c for c in np.unique(y) if 0 < (y == c).sum() < len(y)]
    if proba.shape[1] == 2:
        present = [c for c in present if c == 1]
    if not present:
        return np.full(len(counts), np.nan)
    each = np.stack([_binary_auroc(proba[:, c], y == c, counts) for c in present])
    return np.asarray(each.mean(0))


def _binary_auroc(score: Floats, positive: Bools, counts: Floats) -> Floats:
    """Count the pairs whose positive row has the greater score; ties count half."""
    order = np.argsort(score[~positive], kind="stable")
    negative, at = np.flatnonzero(~positive)[order], np.flatnonzero(positive)
    low, high = (np.searchsorted(score[negative], score[at], side) for side in ("left", "right"))
    by_row = counts.T  # (n, S); contiguous rows, as `sample_rows` stores them
    parts = []
    for start in range(0, len(counts), CHUNK):
        chunk = slice(start, start + CHUNK)
        hits = by_row[at, chunk].astype(np.float64)
        below = np.zeros((len(negative) + 1, hits.shape[1]))
        np.cumsum(by_row[negative, chunk], axis=0, dtype=np.float64, out=below[1:])
        pairs = (hits * (below[low] + below[high])).sum(0) / 2
        total = hits.sum(0) * below[-1]
        parts.append(np.where(total > 0, pairs / np.maximum(total, 1), np.nan))
    return np.concatenate(parts)


def squared_error(values: Floats, y: Floats, counts: Floats) -> Floats:
    """Return minus the mean squared error on each sample. (S,)"""
    return _minus_mean(np.square(values[:, 0] - y), counts)


def absolute_error(values: Floats, y: Floats, counts: Floats) -> Floats:
    """Return minus the mean absolute error on each sample. (S,)"""
    return _minus_mean(np.abs(values[:, 0] - y), counts)


def r2(values: Floats, y: Floats, counts: Floats) -> Floats:
    """Return R² on each sample, relative to the mean of the sample. (S,)"""
    # Subtract the mean first: the variance is the difference of two sums.
    centered = y - y.mean()
    mean = -_minus_mean(centered, counts)
    variance = -_minus_mean(np.square(centered), counts) - np.square(mean)
    error = squared_error(values, y, counts)
    return np.where(variance > 0, 1 + error / np.where(variance > 0, variance, 1), np.nan)


def _minus_mean(errors: Floats, counts: Floats) -> Floats:
    return np.asarray(-(counts @ errors.astype(np.float64)) / counts.sum(1, dtype=np.float64))


Metric = Callable[[Floats, Any, Floats], Floats]
METRICS: dict[str, dict[str, Metric]] = {
    "classification": {"auroc": auroc, "accuracy": accuracy, "log_loss": log_loss},
    "regression": {"r2": r2, "squared_error": squared_error, "absolute_error": absolute_error},
}
"""By task and name; a greater value is better."""
BEST = {
    "auroc": 1.0,
    "accuracy": 1.0,
    "log_loss": 0.0,
    "r2": 1.0,
    "squared_error": 0.0,
    "absolute_error": 0.0,
}
"""The largest possible value of each metric."""
NEEDS_TWO_LABELS = {"auroc": "accuracy", "r2": "squared_error"}
"""Metrics that are undefined if all labels are equal, and one that is defined."""
METRIC_NAMES = {
    "auroc": "AUROC",
    "accuracy": "accuracy",
    "log_loss": "mean log-likelihood",
    "r2": "R²",
    "squared_error": "minus the mean squared error",
    "absolute_error": "minus the mean absolute error",
}
"""How each metric is called in tables and plots."""


def choose_metric(name: str | None, task: Task) -> tuple[str, Metric]:
    """Choose a metric; by default AUROC for two classes, accuracy for more, R² for numbers."""
    if name is None and task.kind == "classification":
        name = "auroc" if task.n_outputs == 2 else "accuracy"
    elif name is None:
        name = "r2"
    known = METRICS[task.kind]
    if name not in known:
        raise InputError(f"metric: {unknown('metric', name, known)}")
    return name, known[name]
