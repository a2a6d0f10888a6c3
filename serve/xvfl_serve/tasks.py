"""What a model predicts: a class or a number.

Shapes: n rows, C outputs of the nets.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xvfl_serve.errors import BundleError, unknown

Floats = NDArray[np.float64]


class Classification:
    """Predict one of several classes."""

    prior_name = "class prior"

    def __init__(self, data: Mapping[str, Any], class_factors: Sequence[float] | None) -> None:
        self.classes: list[Any] = data["classes"]
        self.factors = None if class_factors is None else np.array(class_factors)
        self._keys = [str(label) for label in self.classes]

    def values(self, out: Floats) -> Floats:
        """Convert calibrated logits to probabilities. (n, C)"""
        odds = np.exp(out - out.max(1, keepdims=True))
        proba: Floats = odds / odds.sum(1, keepdims=True)
        return proba

    def choose(self, values: Floats) -> list[int]:
        """Return the column of each row that is the prediction."""
        weighed = values if self.factors is None else values * self.factors
        chosen: list[int] = weighed.argmax(1).tolist()
        return chosen

    def answers(self, values: Floats) -> list[dict[str, Any]]:
        """Return the predicted class and the probabilities of each row."""
        return [
            {
                "prediction": self.classes[label],
                "probabilities": dict(zip(self._keys, row, strict=True)),
            }
            for label, row in zip(self.choose(values), values.tolist(), strict=True)
        ]


class Regression:
    """Predict a number."""

    prior_name = "mean label"

    def __init__(self, data: Mapping[str, Any], class_factors: Sequence[float] | None) -> None:
        self.classes: list[Any] = []
        self.mean, self.scale = (float(data["target"][name]) for name in ("mean", "scale"))

    def values(self, out: Floats) -> Floats:
        """Convert standardized numbers to the units of the label. (n, 1)"""
        return out * self.scale + self.mean

    def choose(self, values: Floats) -> list[int]:
        """Return the column of each row that is the prediction: the only one."""
        return [0] * len(values)

    def answers(self, values: Floats) -> list[dict[str, Any]]:
        """Return the predicted number of each row."""
        return [{"prediction": number} for number in values[:, 0].tolist()]


Task = Classification | Regression
TASKS: dict[str, type[Classification] | type[Regression]] = {
    "classification": Classification,
    "regression": Regression,
}


def build_task(data: Mapping[str, Any], class_factors: Sequence[float] | None) -> Task:
    """Build the task of a manifest."""
    kind = str(data.get("kind"))
    if kind not in TASKS:
        raise BundleError(unknown("task", kind, TASKS) + "; install a newer xvfl-serve")
    return TASKS[kind](data, class_factors)
