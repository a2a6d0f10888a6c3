"""Calibrate the predicted classes of categories on hidden cells.

Log-probabilities get a factor and a bias of each class, by group of cells. Where the classes
predicted in this way are not more often right than the most frequent one, on rows that they are not
fitted to, the probabilities are the shares of the classes.

Shapes: n cells, K classes, G groups.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from xvfl.model.cell_distributions import cells_of_groups
from xvfl_serve.cell_model import GROUPS, Floats, Ints, Target, log_softmax

Bools = NDArray[np.bool_]
MIN_CELLS, MIN_CELLS_OF_GROUP = 20, 100
"""Fewest different cells of a column, and of a group."""
MARGIN = 1.0
"""Standard errors by which the model must be better than the most frequent class."""
STEPS, TOLERANCE = 20, 1e-6


@dataclass(frozen=True)
class ClassCells:
    """Hidden cells of a category."""

    scores: Floats
    """(n, K) predicted log-probabilities."""
    groups: Ints
    classes: Ints
    """(n,) true class."""
    half: Bools
    """(n,) one half of the rows; all copies of a row are in the same half."""
    copies: float
    """Number of cells for each different one."""
    shares: Floats
    """(K,) shares of the classes in the training rows."""
    known: int
    """Classes that are single values: K, or K − 1 where the last one stands for others."""


def fit_classes(target: Target, cells: ClassCells) -> Target:
    """Fit factor and biases of each group of cells. (G, 1 + K)"""
    count = cells.scores.shape[1]
    if count < 2 or len(cells.classes) < cells.copies * MIN_CELLS:
        return target
    filled = np.zeros((GROUPS, 1 + count))
    for which, chosen in cells_of_groups(cells.groups, cells.copies * MIN_CELLS_OF_GROUP):
        filled[which] = _fit_group(cells, chosen)
    return replace(target, filled=filled.reshape(-1))


def _fit_group(cells: ClassCells, chosen: Bools) -> Floats:
    """Return factor and biases, or those of the shares of the classes. (1 + K,)"""
    scores, classes = cells.scores[chosen], cells.classes[chosen]
    half, gains = cells.half[chosen], np.zeros(len(classes))
    for asked in (half, ~half):
        if asked.all() or not asked.any():
            continue
        own = fit_factor(scores[~asked], classes[~asked])
        found = (scores[asked] * own[0] + own[1:])[:, : cells.known].argmax(1)
        mode = cells.shares[: cells.known].argmax()
        right = (found == classes[asked]).astype(float)
        gains[asked] = right - (mode == classes[asked])
    if gains.sum() > MARGIN * np.sqrt(cells.copies * (gains**2).sum()):
        return fit_factor(scores, classes)
    return np.append(0.0, np.log(np.maximum(cells.shares, 1e-4)))


def fit_factor(scores: Floats, classes: Ints) -> Floats:
    """Minimize the log-loss of factor · scores + bias, with a small penalty. (1 + K,)

    Newton's method; steps that do not reduce the loss are halved.
    """
    count = scores.shape[1]
    found, true = np.append(1.0, np.zeros(count)), np.eye(count)[classes]
    start = found.copy()

    def loss(at: Floats) -> float:
        logs = log_softmax(scores * at[0] + at[1:])
        return float(-logs[np.arange(len(classes)), classes].sum() + ((at - start) ** 2).sum())

    best = loss(found)
    for _ in range(STEPS):
        proba = np.exp(log_softmax(scores * found[0] + found[1:]))
        rest, mean = proba - true, (proba * scores).sum(1)
        slope = np.append((rest * scores).sum(), rest.sum(0)) + 2 * (found - start)
        hessian = 2 * np.eye(1 + count)
        hessian[0, 0] += ((proba * scores**2).sum(1) - mean**2).sum()
        hessian[0, 1:] = hessian[1:, 0] = (proba * (scores - mean[:, None])).sum(0)
        hessian[1:, 1:] += np.diag(proba.sum(0)) - proba.T @ proba
        step, before = np.linalg.solve(hessian, slope), best
        for _ in range(STEPS):
            if (new := loss(found - step)) < best:
                found, best = found - step, new
                break
            step = step / 2
        if best > before - TOLERANCE * max(before, 1.0):
            break
    return np.append(max(found[0], 0.0), found[1:])
