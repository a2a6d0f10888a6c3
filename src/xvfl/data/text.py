"""Text form of ids and category values, independent of their type in the table."""

from typing import Any

import numpy as np
import pandas as pd
from pandas.api import types

MAX_INTEGER = 2.0**63
"""Smaller integral floats are written as integers."""


def as_text(values: pd.Series) -> pd.Series:
    """Convert non-missing values to strings: 7, 7.0 and "7" all become "7"."""
    if isinstance(values.dtype, pd.CategoricalDtype):
        values = values.astype(values.cat.categories.dtype)
    if types.is_string_dtype(values.dtype) and not types.is_object_dtype(values.dtype):
        return values.astype("str")
    if types.is_float_dtype(values.dtype):
        return _floats_as_text(values)
    if types.is_object_dtype(values.dtype):
        texts = [item if type(item) is str else _item_as_text(item) for item in values]
        return pd.Series(texts, index=values.index, dtype="str")
    return values.astype("str")


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


def _item_as_text(item: Any) -> str:
    if isinstance(item, bytes):
        return item.decode(errors="replace")
    if isinstance(item, float | np.floating) and float(item).is_integer():
        return str(int(item))
    return str(item)
