"""The head: one hidden layer on the embeddings of all parties; minibatch gradient descent.

Shapes: B rows of a batch, D numbers of all parties' embeddings, k parties, h hidden units. The
embedding of a party that does not hold a row is zero, and `present` (B, k + 1) is public: it says
which parties hold the row, and its last column is 1.
"""

from typing import Any

import jax
import jax.numpy as jnp

NAMES = ("w", "p", "v", "c")
"""Embeddings to hidden units (D, h), presence to hidden units (k + 1, h), hidden units to the
output (h, 1), constant (1, 1)."""
STATE = (*NAMES, *(f"m{name}" for name in NAMES))
"""The weights and the momentum of each."""


def predict(x: Any, present: Any, w: Any, p: Any, v: Any, c: Any, *, classification: bool) -> Any:
    """Compute probabilities, or numbers. (B, 1)"""
    z = jnp.maximum(x @ w + present @ p, 0) @ v + c
    return jax.nn.sigmoid(z) if classification else z


def step(
    x: Any,
    present: Any,
    y: Any,
    *state: Any,
    classification: bool,
    learning_rate: float,
    momentum: float,
) -> tuple[Any, ...]:
    """Take a step of gradient descent; return the state after it.

    The loss is the cross entropy, or half of the squared error, averaged over the batch. Gradients
    are written out, so that means are taken last: fixed-point numbers lose small factors.
    """
    w, p, v, c, *momenta = state
    before = x @ w + present @ p
    active = before > 0
    hidden = before * active
    z = hidden @ v + c
    error = (jax.nn.sigmoid(z) if classification else z) - y
    inner = (error @ v.T) * active
    sums = x.T @ inner, present.T @ inner, hidden.T @ error, error.sum(0, keepdims=True)
    moved = [momentum * m + each * (1 / len(y)) for m, each in zip(momenta, sums, strict=True)]
    changed = [each - learning_rate * m for each, m in zip((w, p, v, c), moved, strict=True)]
    return (*changed, *moved)
