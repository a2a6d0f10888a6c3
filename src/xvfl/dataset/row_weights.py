"""Weights of single rows and of classes in the loss."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd
import torch

from xvfl.dataset.in_memory import InMemoryDataset
from xvfl.errors import InputError, unknown


def weigh_rows(
    dataset: InMemoryDataset,
    sample_weight: pd.Series | None = None,
    class_weight: Mapping[Any, float] | None = None,
) -> InMemoryDataset:
    """Multiply the weights of labeled rows by weights of their ids and of their classes.

    Rows and classes without a weight have weight 1. The mean over the labeled training rows stays
    the same, so that only ratios of weights matter.
    """
    rows, labeled = dataset.rows, dataset.rows.labeled
    factor = torch.ones(len(rows), dtype=torch.float64)
    if sample_weight is not None:
        by_id = sample_weight.reindex(dataset.ids).fillna(1.0).to_numpy()
        factor = torch.where(labeled, torch.from_numpy(by_id.copy()), factor)
    if class_weight is not None:
        classes = dataset.task.classes
        of_class = torch.ones(len(classes) + 1, dtype=torch.float64)
        for label, weight in class_weight.items():
            if label not in classes:
                raise _unknown_class(label, classes)
            if not weight >= 0:
                raise InputError(f"class_weight: expected at least 0, got {weight} for {label!r}")
            of_class[classes.index(label)] = weight
        # Class −1, of unlabeled rows, selects the last entry.
        factor = factor * of_class[rows.y]
    training = dataset.train[labeled[dataset.train]]
    mean = factor[training].mean()
    if not mean > 0:
        raise InputError("weights: expected one above 0 among the training rows")
    factor = torch.where(labeled, factor / mean, factor)
    weights = (rows.weight.double() * factor).to(rows.weight.dtype)
    return replace(dataset, rows=replace(rows, weight=weights))


def _unknown_class(label: Any, classes: list[Any]) -> InputError:
    """Build the error for a weight of an unknown class; say if only its type is wrong."""
    for each in classes:
        if str(each) == str(label):
            return InputError(
                f"class_weight: expected classes of type {type(each).__name__}, as in y, "
                f"got {label!r} of type {type(label).__name__}; write {each!r}"
            )
    return InputError(f"class_weight: {unknown('class', str(label), classes)}")
