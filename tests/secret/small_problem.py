"""A small problem: two parties, rows that one of them does not hold, first weights, the twin."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xvfl_secret import plain

Array = NDArray[Any]
WIDTHS = {"bank": 6, "shop": 4}


@dataclass(frozen=True)
class Problem:
    """Arrays as the nodes' inputs have them, but not split."""

    views: dict[str, Array]
    handles: Array
    y: Array
    first: dict[str, Array]
    classification: bool

    def batch(self, rows: Array, copies: Array | None = None) -> tuple[Array, Array, Array]:
        """Return embeddings, presence and labels of rows."""
        parts, present = [], np.ones((len(rows), 1 + len(self.views)))
        for i, views in enumerate(self.views.values()):
            held = self.handles[rows, i] >= 0
            copy = 0 if copies is None else copies[:, i]
            values = views[np.maximum(self.handles[rows, i], 0), copy].astype(np.float64)
            parts.append(values * held[:, None])
            present[:, i] = held
        return np.concatenate(parts, 1), present, self.y[rows].reshape(-1, 1)

    def train(self, epochs: int, size: int, rate: float, momentum: float, seed: int) -> Any:
        """Train the twin in the order in which the nodes train."""
        state = {name: values.astype(np.float64) for name, values in self.first.items()}
        rows = np.flatnonzero((self.handles >= 0).any(1))
        copies = np.array([each.shape[1] for each in self.views.values()])
        for epoch in range(epochs):
            rng = np.random.default_rng([seed, epoch])
            order = rng.permutation(rows)
            for number in range(len(rows) // size):
                chosen = rng.integers(0, copies, (size, len(copies)))
                x, present, y = self.batch(order[number * size : (number + 1) * size], chosen)
                state = plain.step(x, present, y, state, self.classification, rate, momentum)
        return state


def small_problem(n_rows: int = 160, classification: bool = True, seed: int = 0) -> Problem:
    """Draw a problem in which both parties' embeddings matter."""
    rng = np.random.default_rng(seed)
    views, handles, total = {}, [], np.zeros(n_rows)
    for name, width in WIDTHS.items():
        values = rng.uniform(-1, 1, (n_rows, 3, width)).astype(np.float32)
        order = rng.permutation(n_rows)
        total[order] += values[:, 0].sum(1)
        held = np.empty(n_rows, np.int64)
        held[order] = np.arange(n_rows)
        held[rng.random(n_rows) < 0.3] = -1
        views[name] = values
        handles.append(held)
    y = (total > 0).astype(np.float64) if classification else total / total.std()
    first = first_state(sum(WIDTHS.values()), len(WIDTHS), 8, rng)
    return Problem(views, np.stack(handles, 1), y, first, classification)


def first_state(width: int, parties: int, hidden: int, rng: Any) -> dict[str, Array]:
    """Draw first weights; the momentum is zero."""
    shapes = {"w": (width, hidden), "p": (parties + 1, hidden), "v": (hidden, 1), "c": (1, 1)}
    state = {name: rng.uniform(-0.4, 0.4, shape).astype("f4") for name, shape in shapes.items()}
    return state | {f"m{name}": np.zeros(shape) for name, shape in shapes.items()}
