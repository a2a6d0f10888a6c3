"""Decisions that a method pools with fitted weights (D9), also those of members.

Shapes: B rows, n decisions, C classes.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from xvfl.errors import RunError
from xvfl.methods.base import Federation, Method, Mode, View
from xvfl.methods.members import Members
from xvfl.methods.xvfl import XVFL, DecisionWeights
from xvfl.primitives.rows import Rows


def pooling_method(method: Method) -> XVFL | None:
    """Return the method that pools decisions, or that of the members; None for other methods."""
    inner = method.method if isinstance(method, Members) else method
    return inner if isinstance(inner, XVFL) and inner.pools else None


def decision_weights(method: Method) -> DecisionWeights:
    """Return the weights of a method's decisions, which may be changed; empty for other methods."""
    pooling = pooling_method(method)
    return {} if pooling is None else pooling.decision_weights


def load_decision_weights(method: Method, stored: Mapping[str, Sequence[float]]) -> None:
    """Replace the weights of a method's decisions by stored ones; raise if they do not fit."""
    weights = decision_weights(method)
    weights.clear()
    for key, values in stored.items():
        expected = 3 if key == "collaborative" else 2
        if len(values) != expected or not all(math.isfinite(each) for each in values):
            raise RunError(
                f"decision_weights of {key!r}: expected {expected} numbers, got {values!r}; train "
                "the model again"
            )
        weights[key] = list(values)


def decisions(method: Method, federation: Federation, rows: Rows, mode: Mode, party: int) -> Tensor:
    """Compute the decisions of a mode, averaged over members. (B, n, C)"""
    pooling = pooling_method(method)
    if pooling is None:
        raise TypeError(f"expected a method that pools decisions, got {type(method).__name__}")
    if not isinstance(method, Members):
        return pooling.decisions(federation, rows, mode, party)
    repeated = rows.repeat_for_members(method.members)
    out = pooling.decisions(method.prediction_federation(federation), repeated, mode, party)
    return out.view(rows.runs, method.members, -1, *out.shape[1:]).mean(1).flatten(0, 1)


def prediction_views(method: Method) -> tuple[View, ...]:
    """Return the views that a prediction of the method embeds."""
    inner = method.method if isinstance(method, Members) else method
    return inner.prediction_views if isinstance(inner, XVFL) else ("plain",)


def without_gaps(method: Method) -> Method | None:
    """Return the method for rows that are full, which need no completion; None if it has no other.

    Its predictions of rows that are full at the predicting party, or at all parties in mode
    "collaborative", are the same.
    """
    if "self" not in prediction_views(method):
        return None
    if isinstance(method, Members):
        inner = without_gaps(method.method)
        return None if inner is None else method.of(inner)
    assert isinstance(method, XVFL)
    result = XVFL(method.heads, method.weights, completing=False, task=method.task)
    result.modes = method.modes
    # Decisions of a row as observed and completed are equal, and their weights add up to 1.
    weights = method.decision_weights.get("collaborative")
    if weights is not None and torch.as_tensor(weights)[..., 2].any():
        result.decision_weights["collaborative"] = weights
    return result


def without_completion(method: Method) -> Method | None:
    """Return the method without completion of missing features; None if it never completes."""
    if "self" not in prediction_views(method):
        return None
    build = getattr(method, "without_completion", None)
    result: Method | None = None if build is None else build()
    return result
