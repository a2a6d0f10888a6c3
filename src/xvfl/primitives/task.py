"""What a model predicts: a class (`Classification`) or a number (`Regression`).

A task is the only place where the two differ in training and prediction. A method computes outputs
(B, …, C) of its heads and asks its task for losses, distances and combinations of them. Both tasks
have the same methods; values of predictions and labels are numpy arrays.
Shapes: B rows, k parties, n decisions, R runs of N rows, C outputs: one logit for each class, or
one number.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from xvfl import maths
from xvfl.primitives import metrics

SCALES = (0.05, 20.0)
"""Range of the factor of outputs that calibration fits: the inverse temperature."""
MAX_EVALUATIONS, ACCURACY = 40, 1e-5
"""Most evaluations of the slope, and the last change of the logarithm of a scale."""
LOG_SCALE_PRECISION = 10.0
"""Inverse variance of the normal prior, with mean 0, of the logarithm of a classifier's scale."""
Weights = Sequence[float] | Tensor
Array = NDArray[Any]


@dataclass(frozen=True)
class Classification:
    """Predict one of several classes.

    Parameters
    ----------
    labels : sequence
        The labels of the classes, in the order of their numbers.
    """

    labels: Sequence[Any] = ()
    kind: ClassVar[Literal["classification", "regression"]] = "classification"
    score_name: ClassVar[str] = "log-loss"
    """The validation loss; the score of an epoch is minus it."""
    prior_name: ClassVar[str] = "class prior"
    """The prediction of a row of which nothing is observed."""
    min_classes: ClassVar[int] = 2
    """Fewest classes of training rows; rows with numbers are rows of one class."""

    @property
    def n_outputs(self) -> int:
        """Number of classes."""
        return len(self.labels)

    @property
    def classes(self) -> list[Any]:
        """The labels of the classes."""
        return list(self.labels)

    def loss(self, out: Tensor, y: Tensor) -> Tensor:
        """Compute the cross-entropy of logits (B, …, C), 0 for unlabeled rows. (B, …)"""
        return maths.cross_entropy(out, y)

    def mean_loss(self, out: Tensor, y: Tensor) -> float:
        """Compute the mean cross-entropy of logits (B, C)."""
        return F.cross_entropy(out, y).item()

    def distance(self, out: Tensor, target: Tensor) -> Tensor:
        """Compute the cross-entropy with the probabilities of target logits (B, …, C). (B, …)"""
        return maths.soft_cross_entropy(out, target)

    def decisions(self, out: Tensor) -> Tensor:
        """Convert logits to log-probabilities, which can be averaged. (…, C)"""
        return out.log_softmax(-1)

    def pool(self, decisions: Tensor, weights: Weights) -> Tensor:
        """Add log-probabilities (B, n, C) with weights (D9). (B, C)"""
        return maths.pool_decisions(decisions, weights)

    def pool_parties(self, decisions: Tensor, seen: Tensor) -> Tensor:
        """Add log-probabilities (B, k, C) of the parties that observed a row (B, k). (B, C)"""
        return (decisions * seen.unsqueeze(-1)).sum(1)

    def mix(self, out: Tensor, members: Tensor) -> Tensor:
        """Return the logarithm of the mean probabilities of members of k heads. (B, C)"""
        return maths.mean_over(out.softmax(-1), members).clamp(min=1e-12).log()

    def fit_scale(self, out: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """Minimize the log-loss of softmax(scale · logits), with a prior of the scale. (R,)

        The loss of few rows that are all predicted right falls without end as the scale grows. The
        prior keeps their scale near 1; it has no visible effect on thousands of rows.
        """
        low, high = (out.new_full((len(out),), value).log() for value in SCALES)
        target = out.gather(-1, y.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        at = (low + high) / 2
        # Newton's method, with bisection where it leaves the interval.
        for _ in range(MAX_EVALUATIONS):
            scale = at.exp()
            proba = (out * scale.view(-1, 1, 1)).softmax(-1)
            weighted = proba * out
            mean = weighted.sum(-1)
            slope = ((mean - target) * weight).sum(1) * scale
            variance = (((weighted * out).sum(-1) - mean.square()) * weight).sum(1)
            curvature = slope + variance * scale.square() + LOG_SCALE_PRECISION
            slope = slope + LOG_SCALE_PRECISION * at
            low, high = torch.where(slope < 0, at, low), torch.where(slope < 0, high, at)
            new = at - slope / curvature
            inside = (curvature > 0) & (new > low) & (new < high)
            new = torch.where(inside, new, (low + high) / 2)
            arrived, at = bool(((new - at).abs() < ACCURACY).all()), new
            if arrived:
                break
        return at.exp()

    def values(self, out: Tensor) -> NDArray[np.float64]:
        """Convert logits to probabilities. (n, C)"""
        proba: NDArray[np.float64] = torch.softmax(out.double(), -1).cpu().numpy()
        return proba

    def known(self, labels: Array) -> NDArray[np.bool_]:
        """Return which labels are classes of the model."""
        return self.encode(labels) >= 0

    def encode(self, labels: Array) -> Array:
        """Return class numbers, −1 for labels that are no class of the model."""
        number = {label: place for place, label in enumerate(self.labels)}
        return np.array([number.get(label, -1) for label in labels.tolist()], dtype=np.int64)

    def restore(self, y: Tensor) -> Array:
        """Return class numbers."""
        return y.cpu().numpy()

    def metrics(self, values: Array, y: Array) -> dict[str, float]:
        """Compute the metrics of probabilities (n, C) against class numbers."""
        return metrics.all_metrics(values, y)

    def to_dict(self) -> dict[str, Any]:
        """Return the classes."""
        return {"classes": self.classes}


@dataclass(frozen=True)
class Regression:
    """Predict a number.

    Nets are trained with the standardized target, (label − mean) / scale. Mean and scale are those
    of the labeled training rows; only the coordinator knows them.

    Parameters
    ----------
    mean, scale : float
        Mean and standard deviation of the target.
    """

    mean: float = 0.0
    scale: float = 1.0
    kind: ClassVar[Literal["classification", "regression"]] = "regression"
    score_name: ClassVar[str] = "squared error"
    prior_name: ClassVar[str] = "mean label"
    min_classes: ClassVar[int] = 1

    @property
    def n_outputs(self) -> int:
        """One number."""
        return 1

    @property
    def classes(self) -> list[Any]:
        """Empty: there are no classes."""
        return []

    def loss(self, out: Tensor, y: Tensor) -> Tensor:
        """Compute the squared error of outputs (B, …, 1), 0 for unlabeled rows. (B, …)"""
        return maths.squared_error(out, y)

    def mean_loss(self, out: Tensor, y: Tensor) -> float:
        """Compute the mean squared error of outputs (B, 1)."""
        return self.loss(out, y).mean().item()

    def distance(self, out: Tensor, target: Tensor) -> Tensor:
        """Compute the squared distance of outputs (B, …, 1). (B, …)"""
        return (out - target).square().sum(-1)

    def decisions(self, out: Tensor) -> Tensor:
        """Return the outputs, which can be averaged. (…, 1)"""
        return out

    def pool(self, decisions: Tensor, weights: Weights) -> Tensor:
        """Compute the weighted mean of outputs (B, n, 1). (B, 1)"""
        w = torch.as_tensor(weights, dtype=decisions.dtype, device=decisions.device)
        return maths.pool_decisions(decisions, w / w.sum(-1, keepdim=True))

    def pool_parties(self, decisions: Tensor, seen: Tensor) -> Tensor:
        """Compute the mean output of the parties that observed a row. (B, 1)"""
        return maths.mean_over(decisions, seen)

    def mix(self, out: Tensor, members: Tensor) -> Tensor:
        """Compute the mean output of members of k heads. (B, 1)"""
        return maths.mean_over(out, members)

    def fit_scale(self, out: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """Minimize the squared error of scale · output (R, N, 1), by least squares. (R,)"""
        x, target = out.squeeze(-1), y.nan_to_num()
        product, square = (x * target * weight).sum(1), (x * x * weight).sum(1)
        return (product / square.clamp(min=1e-12)).clamp(*SCALES)

    def values(self, out: Tensor) -> NDArray[np.float64]:
        """Convert outputs to the units of the label. (n, 1)"""
        numbers: NDArray[np.float64] = (out.double() * self.scale + self.mean).cpu().numpy()
        return numbers

    def standardize(self, targets: Array) -> Tensor:
        """Return the labels that nets are trained with; NaN stays NaN."""
        return torch.from_numpy((targets - self.mean) / self.scale).float()

    def known(self, labels: Array) -> NDArray[np.bool_]:
        """Return which labels are finite."""
        return np.isfinite(self.encode(labels))

    def encode(self, labels: Array) -> Array:
        """Return the labels as numbers."""
        return np.asarray(labels, dtype=np.float64)

    def restore(self, y: Tensor) -> Array:
        """Return labels in their own units."""
        numbers: Array = (y.double() * self.scale + self.mean).cpu().numpy()
        return numbers

    def metrics(self, values: Array, y: Array) -> dict[str, float]:
        """Compute the metrics of numbers (n, 1) in the units of the label."""
        return metrics.regression_metrics(values[:, 0], y)

    def to_dict(self) -> dict[str, Any]:
        """Return mean and scale of the target."""
        return {"classes": [], "target": {"mean": self.mean, "scale": self.scale}}


Task = Classification | Regression
CLASSIFICATION = Classification()
"""The task of methods that are built without one; the number of classes is that of the outputs."""


def task_from_dict(data: Mapping[str, Any]) -> Task:
    """Restore a task from the entries of a manifest."""
    target = data.get("target")
    return Classification(list(data["classes"])) if target is None else Regression(**target)
