"""The head without secrets, in double precision: the slow, obvious twin of `head`."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def step(
    x: Array,
    present: Array,
    y: Array,
    state: dict[str, Array],
    classification: bool,
    learning_rate: float,
    momentum: float,
) -> dict[str, Array]:
    """Take a step of gradient descent."""
    before = x @ state["w"] + present @ state["p"]
    hidden = np.maximum(before, 0)
    output = hidden @ state["v"] + state["c"]
    d_output = ((_sigmoid(output) if classification else output) - y) / len(y)
    d_before = np.where(before > 0, d_output @ state["v"].T, 0)
    gradients = {
        "w": x.T @ d_before,
        "p": present.T @ d_before,
        "v": hidden.T @ d_output,
        "c": d_output.sum(0, keepdims=True),
    }
    after = {}
    for name, gradient in gradients.items():
        after[f"m{name}"] = momentum * state[f"m{name}"] + gradient
        after[name] = state[name] - learning_rate * after[f"m{name}"]
    return after


def predict(x: Array, present: Array, state: dict[str, Array], classification: bool) -> Array:
    """Compute probabilities, or numbers. (B, 1)"""
    hidden = np.maximum(x @ state["w"] + present @ state["p"], 0)
    output = hidden @ state["v"] + state["c"]
    return _sigmoid(output) if classification else output


def _sigmoid(z: Array) -> Array:
    return 1 / (1 + np.exp(-z))
