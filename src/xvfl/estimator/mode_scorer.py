"""Score one prediction mode in scikit-learn's tools, such as `cross_val_score`."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, update_wrapper
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.metrics import get_scorer

from xvfl.data.party_frame import is_party_frame
from xvfl.errors import InputError, ModeError, unknown
from xvfl.estimator.base_estimator import XVFLEstimator
from xvfl.methods import MODES, Mode

Scorer = Callable[..., float]
PREDICTING = ("predict", "predict_proba", "predict_log_proba", "decision_function", "score")


def scorer(
    scoring: str | Scorer | None = None, *, mode: Mode | None = None, party: str | None = None
) -> Scorer:
    """Make a scorer of one prediction mode, for `cross_val_score` and other scikit-learn tools.

    Rows that the party does not hold are left out in all modes that need a party.

    Parameters
    ----------
    scoring : str or callable, default=None
        A metric by its name in scikit-learn, such as `"roc_auc"` or `"neg_log_loss"`, or a scorer
        that `sklearn.metrics.make_scorer` built. By default the `score` of the estimator: accuracy
        or R².
    mode : str, default=None
        Prediction mode: `"local"`, `"assisted"`, `"collaborative"` or `"peers"`. By default
        `"collaborative"`, or `"local"` if `party` is given.
    party : str, default=None
        The predicting party, required in all modes but `"collaborative"`.

    Returns
    -------
    callable
        Called with a fitted estimator, one DataFrame with (party, column) columns, and labels.

    Raises
    ------
    ModeError
        If the mode is unknown, or needs a party.
    ValueError
        If scikit-learn does not know the metric.

    Examples
    --------
    Cross-validate the bank alone:

    >>> from sklearn.model_selection import cross_val_score
    >>> from xvfl import XVFLClassifier, scorer
    >>> alone = scorer("roc_auc", mode="local", party="bank")
    >>> scores = cross_val_score(XVFLClassifier(), X, y, scoring=alone)  # doctest: +SKIP
    """
    modes = (*MODES, "peers")
    if mode is not None and mode not in modes:
        raise ModeError(unknown("mode", str(mode), modes))
    if party is None and mode not in (None, "collaborative"):
        raise ModeError(f"scorer: mode {mode!r} needs the predicting party; write party='bank'")
    metric = None if scoring is None else get_scorer(scoring)
    return _ModeScorer(metric, mode, party if mode != "collaborative" else None)


@dataclass(frozen=True)
class _ModeScorer:
    """Scores a fitted estimator in one mode; it can be pickled."""

    metric: Scorer | None
    mode: Mode | None
    party: str | None

    def __call__(self, estimator: Any, X: Any, y: Any, sample_weight: Any = None) -> float:
        estimator = getattr(estimator, "best_estimator_", estimator)
        if not isinstance(estimator, XVFLEstimator) or not is_party_frame(X):
            raise InputError(
                "scorer: expected XVFLClassifier or XVFLRegressor and one DataFrame with (party, "
                f"column) columns, got {type(estimator).__name__} and {type(X).__name__}"
            )
        held = self._held_rows(X)
        y = y[held] if isinstance(y, pd.Series) else np.asarray(y)[held]
        more = {} if sample_weight is None else {"sample_weight": np.asarray(sample_weight)[held]}
        view = _InMode(estimator, self.mode, self.party)
        if self.metric is None:
            return float(view.score(X[held], y, **more))
        return float(self.metric(view, X[held], y, **more))

    def _held_rows(self, X: pd.DataFrame) -> NDArray[np.bool_]:
        """Tell which rows of a frame the party holds; without a party, all."""
        if self.party is None:
            return np.ones(len(X), dtype=bool)
        parties = X.columns.unique(0)
        if self.party not in parties:
            raise ModeError(f"scorer: {unknown('party', self.party, parties)}")
        return np.asarray(X[self.party].notna().to_numpy().any(1), dtype=bool)


class _InMode(BaseEstimator):  # type: ignore[misc]
    """A fitted estimator whose predictions have a fixed mode and party."""

    def __init__(self, estimator: Any, mode: Mode | None, party: str | None) -> None:
        self.estimator, self.mode, self.party = estimator, mode, party

    def __sklearn_tags__(self) -> Any:
        return self.estimator.__sklearn_tags__()

    def __getattr__(self, name: str) -> Any:
        if name == "classes_":
            return self.estimator.classes_
        if name not in PREDICTING:
            raise AttributeError(name)
        method = getattr(self.estimator, name)
        return update_wrapper(partial(method, mode=self.mode, party=self.party), method)
