"""Text form of ids and category values, independent of their type in the table."""

from typing import Any

import numpy as np
import pandas as pd
from pandas.api import types

from xvfl_serve.encoding.cells import MAX_INTEGER, text_of


def as_text(values: pd.Series) -> pd.Series:
    """Convert non-missing values to strings, as `text_of`: 7, 7.0 and "7" all become "7"."""
    values = without_categories(values)
    if is_text(values):
        return values.astype("str")
    if types.is_float_dtype(values.dtype):
        return _floats_as_text(values)
    if types.is_object_dtype(values.dtype) or values.dtype.kind in "mM":
        texts = [item if type(item) is str else _item_text(item) for item in values]
        return pd.Series(texts, index=values.index, dtype="str")
    return values.astype("str")


def is_text(cells: pd.Series) -> bool:
    """Tell whether the type of a column is text, not object."""
    return types.is_string_dtype(cells.dtype) and not types.is_object_dtype(cells.dtype)


def without_categories(cells: pd.Series) -> pd.Series:
    """Convert a categorical column to the type of its categories."""
    if isinstance(cells.dtype, pd.CategoricalDtype):
        return cells.astype(cells.cat.categories.dtype)
    return cells


def _floats_as_text(values: pd.Series) -> pd.Series:
    numbers = values.to_numpy(dtype=np.float64)
    integral = (
        np.isfinite(numbers) & (np.abs(numbers) < MAX_INTEGER) & (np.trunc(numbers) == numbers)
    )
    integers = pd.Series(np.where(integral, numbers, 0.0).astype(np.int64), index=values.index)
    texts = integers.astype("str")
    if not integral.all():
        texts = texts.where(integral, pd.Series(numbers, index=values.index).astype("str"))
    return texts


def _item_text(item: Any) -> str:
    try:
        return text_of(item)
    except TypeError:
        return str(item)
