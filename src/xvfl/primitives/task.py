"""What a model predicts: a class (`Classification`) or a number (`Regression`).

A task is the only place where the two differ in training and prediction. A method computes outputs
(B, …, C) of its heads and asks its task for losses, distances and combinations of them.
Shapes: B rows, k parties, n decisions, C outputs: one logit for each class, or one number.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from xvfl import maths
from xvfl.primitives import metrics

SCALES = (0.05, 20.0)
"""Range of the factor of outputs that calibration fits: the inverse temperature."""
Weights = Sequence[float] | Tensor
Array = NDArray[Any]


class Task(Protocol):
    """What a model predicts, with everything that depends on it."""

    kind: ClassVar[Literal["classification", "regression"]]
    score_name: ClassVar[str]
    """The validation loss: minus it is the score of an epoch."""
    prior_name: ClassVar[str]
    """The prediction of a row of which nothing is observed."""
    min_classes: ClassVar[int]
    """Fewest classes of training rows; rows with numbers are rows of one class."""

    @property
    def n_outputs(self) -> int:
        """Number of outputs of a head."""

    @property
    def classes(self) -> list[Any]:
        """The labels, in the order of the outputs; empty for numbers."""

    def loss(self, out: Tensor, y: Tensor) -> Tensor:
        """Compute the loss of outputs (B, …, C) and labels (B,), 0 for unlabeled rows. (B, …)"""

    def mean_loss(self, out: Tensor, y: Tensor) -> float:
        """Compute the mean loss of outputs (B, C) against labels (B,)."""

    def distance(self, out: Tensor, target: Tensor) -> Tensor:
        """Compute the loss of outputs against other outputs, the targets; both (B, …, C). (B, …)"""

    def distill(self, student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
        """Compute the distillation loss of outputs and a teacher's, both (B, …, C). (B, …)"""

    def decisions(self, out: Tensor) -> Tensor:
        """Convert outputs to a form that can be averaged. (…, C)"""

    def pool(self, decisions: Tensor, weights: Weights) -> Tensor:
        """Combine decisions (B, n, C) with weights (D9). (B, C)"""

    def pool_parties(self, decisions: Tensor, seen: Tensor) -> Tensor:
        """Combine decisions (B, k, C) of the parties that observed a row (B, k). (B, C)"""

    def mix(self, out: Tensor, members: Tensor) -> Tensor:
        """Average the predictions of several heads (B, k, C) over members (B, k). (B, C)"""

    def fit_scale(self, out: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """Fit the factor of outputs (R, N, C) that minimizes the loss of each of R runs. (R,)"""

    def values(self, out: Tensor) -> NDArray[np.float64]:
        """Convert outputs to probabilities, or to numbers in the units of the label. (n, C)"""

    def known(self, labels: Array) -> NDArray[np.bool_]:
        """Return which labels the model can predict."""

    def encode(self, labels: Array) -> Array:
        """Convert labels to class numbers, −1 for others, or to numbers."""

    def restore(self, y: Tensor) -> Array:
        """Convert the labels of `Rows` to class numbers, or to numbers in the label's units."""

    def metrics(self, values: Array, y: Array) -> dict[str, float]:
        """Compute every metric of `values` (n, C) against `restore`d or `encode`d labels."""

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON form, the entries of a manifest."""


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
    prior_name: ClassVar[str] = "class prior"
    min_classes: ClassVar[int] = 2

    @property
    def n_outputs(self) -> int:
        """Number of classes."""
        return len(self.labels)

    @property
    def classes(self) -> list[Any]:
        """The labels of the classes."""
        return list(self.labels)

    def loss(self, out: Tensor, y: Tensor) -> Tensor:
        """Compute the cross-entropy."""
        return maths.cross_entropy(out, y)

    def mean_loss(self, out: Tensor, y: Tensor) -> float:
        """Compute the mean cross-entropy."""
        return F.cross_entropy(out, y).item()

    def distance(self, out: Tensor, target: Tensor) -> Tensor:
        """Compute the cross-entropy against the probabilities of the target logits."""
        return maths.soft_cross_entropy(out, target)

    def distill(self, student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
        """Compute T²·KL(teacher at T ‖ student at T)."""
        target = F.log_softmax(teacher / temperature, -1)
        output = F.log_softmax(student / temperature, -1)
        return temperature**2 * (target.exp() * (target - output)).sum(-1)

    def decisions(self, out: Tensor) -> Tensor:
        """Return log-probabilities."""
        return out.log_softmax(-1)

    def pool(self, decisions: Tensor, weights: Weights) -> Tensor:
        """Add weighted log-probabilities."""
        return maths.pool_decisions(decisions, weights)

    def pool_parties(self, decisions: Tensor, seen: Tensor) -> Tensor:
        """Add the parties' log-probabilities."""
        return (decisions * seen.unsqueeze(-1)).sum(1)

    def mix(self, out: Tensor, members: Tensor) -> Tensor:
        """Return the logarithm of the mean probabilities."""
        return maths.mean_over(out.softmax(-1), members).clamp(min=1e-12).log()

    def fit_scale(self, out: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """Minimize the log-loss of softmax(scale · logits), which is convex in the scale."""
        low, high = (out.new_full((len(out),), value).log() for value in SCALES)
        target = out.gather(-1, y.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        for _ in range(20):
            middle = (low + high) / 2
            proba = (out * middle.exp().view(-1, 1, 1)).softmax(-1)
            slope = (((proba * out).sum(-1) - target) * weight).sum(1)
            low, high = torch.where(slope < 0, middle, low), torch.where(slope < 0, high, middle)
        return ((low + high) / 2).exp()

    def values(self, out: Tensor) -> NDArray[np.float64]:
        """Return probabilities."""
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
        """Compute the metrics of probabilities."""
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
        """Compute the squared error."""
        return maths.squared_error(out, y)

    def mean_loss(self, out: Tensor, y: Tensor) -> float:
        """Compute the mean squared error."""
        return self.loss(out, y).mean().item()

    def distance(self, out: Tensor, target: Tensor) -> Tensor:
        """Compute the squared distance."""
        return (out - target).square().sum(-1)

    def distill(self, student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
        """Compute the squared distance; numbers have no temperature."""
        return self.distance(student, teacher)

    def decisions(self, out: Tensor) -> Tensor:
        """Return the numbers."""
        return out

    def pool(self, decisions: Tensor, weights: Weights) -> Tensor:
        """Compute the weighted mean."""
        w = torch.as_tensor(weights, dtype=decisions.dtype, device=decisions.device)
        return maths.pool_decisions(decisions, w / w.sum(-1, keepdim=True))

    def pool_parties(self, decisions: Tensor, seen: Tensor) -> Tensor:
        """Compute the mean of the parties' numbers."""
        return maths.mean_over(decisions, seen)

    def mix(self, out: Tensor, members: Tensor) -> Tensor:
        """Compute the mean of the heads' numbers."""
        return maths.mean_over(out, members)

    def fit_scale(self, out: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """Minimize the squared error of scale · output, by the formula of least squares."""
        x, target = out.squeeze(-1), y.nan_to_num()
        product, square = (x * target * weight).sum(1), (x * x * weight).sum(1)
        return (product / square.clamp(min=1e-12)).clamp(*SCALES)

    def values(self, out: Tensor) -> NDArray[np.float64]:
        """Return numbers in the units of the label."""
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
        """Compute the metrics of numbers."""
        return metrics.regression_metrics(values[:, 0], y)

    def to_dict(self) -> dict[str, Any]:
        """Return mean and scale of the target."""
        return {"classes": [], "target": {"mean": self.mean, "scale": self.scale}}


CLASSIFICATION = Classification()
"""The task of methods that are built without one; the number of classes is that of the outputs."""


def task_from_dict(data: Mapping[str, Any]) -> Task:
    """Restore a task from the entries of a manifest."""
    target = data.get("target")
    return Classification(list(data["classes"])) if target is None else Regression(**target)
