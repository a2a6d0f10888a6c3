"""scikit-learn compatible estimators for tables of several parties."""

from xvfl.estimator.classifier import XVFLClassifier
from xvfl.estimator.mode_scorer import scorer
from xvfl.estimator.regressor import XVFLRegressor

__all__ = ["XVFLClassifier", "XVFLRegressor", "scorer"]
