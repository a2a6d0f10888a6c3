"""Checks of scikit-learn's `check_estimator` on estimators that split an array into parties.

XVFLClassifier and XVFLRegressor need tables of several parties. `SplitClassifier` and
`SplitRegressor` give the first half of an array's columns to one party and the rest to another, so
that scikit-learn's own checks can run.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.estimator_checks import (
    check_classifiers_train,
    check_regressors_train,
    parametrize_with_checks,
)
from sklearn.utils.validation import check_is_fitted, validate_data

from xvfl import XVFLClassifier, XVFLRegressor

EXPECTED_FAILURES = {
    "check_sample_weight_equivalence_on_dense_data": (
        "rows cannot be repeated, because ids are unique; and validation rows count equally"
    ),
    "check_classifiers_train": "one epoch is too few; see test_checks_of_training",
    "check_regressors_train": "one epoch is too few; see test_checks_of_training",
    "check_fit2d_1sample": "validation rows are needed",
    "check_fit2d_1feature": "two parties are needed",
    "check_classifiers_regression_target": "numbers with many values are rejected by InputError",
}
"""Checks of scikit-learn that do not apply, with the reason."""


SMALL: dict[str, Any] = {
    "embedding_dim": 4,
    "hidden_dim": 8,
    "members": 1,
    "batch_size": 64,
    "device": "cpu",
    "verbose": False,
}


class _Split:
    """For arrays: two parties with half of the columns each."""

    def __init__(self, epochs: int = 1, random_state: int | None = 0) -> None:
        self.epochs, self.random_state = epochs, random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        X, y = validate_data(self, X, y, ensure_all_finite="allow-nan")
        estimator = XVFLClassifier if isinstance(self, ClassifierMixin) else XVFLRegressor
        sizes = SMALL if self.epochs == 1 else {"verbose": False}
        model = estimator(epochs=self.epochs, random_state=self.random_state, **sizes)
        self.estimator_ = model.fit(_split(X), y, sample_weight)
        if isinstance(self, ClassifierMixin):
            self.classes_ = self.estimator_.classes_
        return self

    def predict(self, X: Any) -> Any:
        return self._checked().predict(self._frame(X))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        score: float = self._checked().score(self._frame(X), y, sample_weight=sample_weight)
        return score

    def _checked(self) -> Any:
        check_is_fitted(self, "estimator_")
        return self.estimator_

    def _frame(self, X: Any) -> pd.DataFrame:
        return _split(validate_data(self, X, reset=False, ensure_all_finite="allow-nan"))


class SplitRegressor(_Split, XVFLRegressor):  # type: ignore[misc]
    """XVFLRegressor for arrays."""


class SplitClassifier(_Split, XVFLClassifier):  # type: ignore[misc]
    """XVFLClassifier for arrays."""

    def predict_proba(self, X: Any) -> Any:  # type: ignore[override]
        return self._checked().predict_proba(self._frame(X))

    def decision_function(self, X: Any) -> Any:  # type: ignore[override]
        return self._checked().decision_function(self._frame(X))

    def predict_log_proba(self, X: Any) -> Any:  # type: ignore[override]
        return self._checked().predict_log_proba(self._frame(X))


def _split(X: np.ndarray) -> pd.DataFrame:
    names = [("left" if i < X.shape[1] // 2 else "right", f"x{i}") for i in range(X.shape[1])]
    return pd.DataFrame(X, columns=pd.MultiIndex.from_tuples(names))


@parametrize_with_checks(
    [SplitClassifier(), SplitRegressor()], expected_failed_checks=lambda _: EXPECTED_FAILURES
)
@pytest.mark.filterwarnings("ignore")
def test_checks_of_scikit_learn(estimator: BaseEstimator, check: Callable[..., None]) -> None:
    check(estimator)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_checks_of_training() -> None:
    check_classifiers_train("SplitClassifier", SplitClassifier(epochs=30))
    check_regressors_train("SplitRegressor", SplitRegressor(epochs=30))
