"""Attacks on labels: a party's attempts with what it receives. Shapes: m rows, w values.

Gradients: O. Li et al., Label leakage and protection in two-party split learning, ICLR 2022.
Model completion: C. Fu et al., Label inference attacks against vertical federated learning,
USENIX Security 2022.
"""

import numpy as np

from xvfl.audit.scoring import Array, Ints, class_auc
from xvfl.primitives.metrics import auroc

KNOWN_ROWS_TRIED = 5
"""Rows of each class that the direction attack tries as its known row; their mean counts."""
PENALTIES = (0.01, 0.1, 1.0, 10.0)
"""Strengths of regularization per input; the best for the attacker counts."""


def norm_attack(vectors: Array, y: Ints) -> float:
    """Guess labels by the length of each row's vector; return the AUC of the clearest class."""
    length = np.linalg.norm(vectors, axis=1)
    return max((class_auc(length, y, label) for label in _testable(y)), default=0.5)


def direction_attack(vectors: Array, y: Ints) -> float:
    """Guess labels by the cosine to one row whose label is known; the clearest class."""
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    found = [0.5]
    for label in _testable(y):
        of_label = np.flatnonzero(y == label)[:KNOWN_ROWS_TRIED]
        each = []
        for known in of_label:
            rest = np.arange(len(y)) != known
            each.append(class_auc(unit[rest] @ unit[known], y[rest], label))
        found.append(float(np.mean(each)))
    return max(found)


def spectral_attack(vectors: Array, y: Ints) -> float:
    """Guess labels by the position along the main directions of all vectors; the clearest class.

    There are as many directions as classes, less one. No label is known.
    """
    testable = _testable(y)
    if len(vectors) < 3 or not testable:
        return 0.5
    centered = vectors - vectors.mean(0)
    _, directions = np.linalg.eigh(centered.T @ centered)
    scores = centered @ directions[:, -max(len(np.unique(y)) - 1, 1) :]
    return max(class_auc(score, y, label) for score in scores.T for label in testable)


def _testable(y: Ints) -> list[int]:
    """Return the classes with at least two rows, and other rows beside them."""
    return [int(label) for label in np.unique(y) if 2 <= (y == label).sum() < len(y)]


def model_completion(x: Array, y: Ints, n_known: int, draws: int, seed: int = 0) -> float:
    """Train a classifier on a few rows with known labels; return the AUC on the others.

    The classifier is ridge regression of the classes; the mean over several draws of the known
    rows.
    """
    rng = np.random.default_rng(seed)
    scaled = (x - x.mean(0)) / np.maximum(x.std(0), 1e-6)
    scaled = np.concatenate([scaled, np.ones((len(x), 1))], 1).astype(np.float64)
    scores: dict[float, list[float]] = {penalty: [] for penalty in PENALTIES}
    for _ in range(draws):
        order = rng.permutation(len(y))
        known, rest = order[:n_known], order[n_known:]
        if len(np.unique(y[known])) < 2:
            continue
        one_hot = np.eye(int(y.max()) + 1)[y[known]]
        kernel = scaled[known] @ scaled[known].T
        across = scaled[rest] @ scaled[known].T
        for penalty in PENALTIES:
            ridge = penalty * scaled.shape[1] * np.eye(n_known)
            predicted = across @ np.linalg.solve(kernel + ridge, one_hot)
            scores[penalty].append(auroc(predicted, y[rest]))
    means = [float(np.mean(each)) for each in scores.values() if each]
    return max(means, default=0.5)
