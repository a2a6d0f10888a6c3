"""Choose the rule that turns probabilities into classes, by validation rows."""

import numpy as np

from xvfl.errors import warn
from xvfl.federation.fused import FusedFederation
from xvfl.methods import Mode
from xvfl.model.decision_rule import class_factors, predicted_classes
from xvfl.model.model import Model
from xvfl.model.prediction import PredictRequest
from xvfl.primitives.rows import Rows
from xvfl.training.predict import logits, predictable_rows

MIN_ROWS = 20
"""Fewer validation rows than this say nothing about predictions that are all of one class."""


def choose_classes(
    model: Model, federation: FusedFederation, rows: Rows, threshold: float | str | None
) -> None:
    """Set `class_factors` of a model; warn if all validation rows get the same class."""
    mode: Mode = "collaborative" if "collaborative" in model.method.modes else "local"
    rows = rows.take(predictable_rows(rows, mode, 0).nonzero().flatten())
    if not model.classes or not len(rows):
        return
    request = PredictRequest(mode, federation.names[0] if mode == "local" else None)
    out = logits(model.method, federation, rows, mode, 0).double() / model.temperature(
        request, rows
    )
    proba, y = model.task.values(out), rows.y.cpu().numpy()
    model.class_factors = class_factors(threshold, proba, y, model.prior)
    numbers = predicted_classes(proba, model.class_factors)
    if len(np.unique(numbers)) == 1 and len(np.unique(y)) > 1 and len(y) >= MIN_ROWS:
        warn(
            f"all {len(y)} validation rows are predicted as {model.classes[numbers[0]]!r}; for a "
            "rare class set threshold='balanced_accuracy' or class_weight='balanced', otherwise "
            "train for more epochs or check the columns"
        )
