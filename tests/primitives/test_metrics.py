"""The metrics agree with scikit-learn's, and the calibration error with a sum by hand."""

import math

import numpy as np
import pytest
from sklearn import metrics as known

from xvfl.primitives import metrics


def draw(classes: int, seed: int, ties: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Draw probabilities that bear on the labels; `ties` rounds them."""
    rng = np.random.default_rng(seed)
    y = rng.integers(classes, size=80)
    scores = rng.normal(size=(80, classes)) + np.eye(classes)[y]
    proba = np.exp(np.round(scores) if ties else scores)
    return proba / proba.sum(1, keepdims=True), y


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("ties", [False, True])
def test_against_scikit_learn(classes: int, seed: int, ties: bool) -> None:
    proba, y = draw(classes, seed, ties)
    said = proba.argmax(1)
    assert metrics.accuracy(proba, y) == pytest.approx(known.accuracy_score(y, said))
    expected = known.balanced_accuracy_score(y, said)
    assert metrics.balanced_accuracy(proba, y) == pytest.approx(expected)
    assert metrics.nll(proba, y) == pytest.approx(known.log_loss(y, proba, labels=range(classes)))
    given = proba[:, 1] if classes == 2 else proba
    expected = known.roc_auc_score(y, given, multi_class="ovr", average="macro")
    assert metrics.auroc(proba, y) == pytest.approx(expected)
    counts = np.bincount(y)
    assert metrics.majority_rate(y) == counts.max() / 80


def test_calibration_error_by_hand() -> None:
    confidence = np.array([0.62, 0.64, 0.91, 0.99, 1.0])
    proba = np.stack([1 - confidence, confidence], 1)
    y = np.array([1, 0, 1, 1, 0])
    # Bins of a fifteenth: {0.62, 0.64}, {0.91}, {0.99, 1.0}.
    by_hand = 2 / 5 * abs(0.63 - 0.5) + 1 / 5 * abs(0.91 - 1) + 2 / 5 * abs(0.995 - 0.5)
    assert metrics.ece(proba, y) == pytest.approx(by_hand)
    assert metrics.ece(np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([0, 1])) == 0


def test_classes_that_do_not_occur() -> None:
    proba, y = draw(3, 0)
    two = y < 2
    assert 0 <= metrics.auroc(proba[two], y[two]) <= 1
    right = proba[two].argmax(1) == y[two]
    expected = (right[y[two] == 0].mean() + right[y[two] == 1].mean()) / 2
    assert metrics.balanced_accuracy(proba[two], y[two]) == pytest.approx(expected)
    assert math.isnan(metrics.auroc(proba[:, :2], np.zeros(80, dtype=np.int64)))


def test_a_sure_mistake_costs_much_but_not_everything() -> None:
    assert 20 < metrics.nll(np.array([[1.0, 0.0]]), np.array([1])) < 30


def test_all_metrics_are_named() -> None:
    found = metrics.all_metrics(*draw(2, 0))
    assert list(found) == ["accuracy", "balanced_accuracy", "auroc", "nll", "ece"]
    assert all(isinstance(value, float) for value in found.values())
