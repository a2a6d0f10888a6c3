"""scikit-learn compatible estimators for tables of several parties."""

from xvfl.estimator.classifier import XVFLClassifier
from xvfl.estimator.regressor import XVFLRegressor
from xvfl.estimator.mode_scorer import scorer

__all__ = ["XVFLClassifier", "XVFLRegressor", "scorer"]
