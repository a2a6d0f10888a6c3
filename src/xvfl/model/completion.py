"""Write completed values back to a party's columns and units."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types

from xvfl.data.encoder import TableEncoder
from xvfl.data.images import ImageEncoder, Images
from xvfl.data.parse import mask_missing
from xvfl.data.text import as_text

Floats = NDArray[np.float64]


def fill_gaps(
    encoder: TableEncoder, completed: pd.DataFrame, source: pd.DataFrame, ids: Sequence[str]
) -> pd.DataFrame:
    """Replace the missing cells of a table's rows by those of a decoded table."""
    index = pd.Index(list(ids), name="id")
    completed, given = completed.set_axis(index), source.reindex(index)
    for name in encoder.columns:
        gaps = mask_missing(given[name], encoder.missing).isna()
        if gaps.any():
            given[name] = _mix(given[name], in_table_format(encoder, completed[name]), gaps)
    return given


def in_table_format(encoder: TableEncoder, decoded: pd.Series) -> pd.Series:
    """Write decoded dates as text if the table's dates are text of another format than ISO 8601."""
    form = encoder.date_formats.get(str(decoded.name))
    return decoded.dt.strftime(form) if form else decoded


def _mix(given: pd.Series, completed: pd.Series, gaps: pd.Series) -> pd.Series:
    """Fill the gaps of a column and keep its dtype."""
    if types.is_string_dtype(given[~gaps]) and not types.is_string_dtype(completed):
        completed = as_text(completed)
    mixed = given.astype(object).where(~gaps, completed.astype(object)).infer_objects()
    if isinstance(given.dtype, pd.CategoricalDtype):
        categories = given.cat.categories
        new = pd.Index(mixed.dropna().unique()).difference(categories, sort=False)
        return mixed.astype(pd.CategoricalDtype(categories.append(new), given.cat.ordered))
    return mixed


def fill_images(
    encoder: ImageEncoder, source: Images, ids: Sequence[str], values: Floats
) -> Images:
    """Replace the missing pixels of a party's rows by completed ones (n, …)."""
    completed = encoder.decode(values)
    at = pd.Index(source.ids).get_indexer(pd.Index(list(ids)))
    held = np.flatnonzero(at >= 0)
    pixels = source.pixels[at[held]]
    given = None if source.observed is None else source.observed[at[held]]
    observed = encoder.encode(pixels, [ids[int(row)] for row in held], given).observed
    observed = observed.reshape(len(held), *encoder.shape[1:])
    if encoder.axes != "HW":
        observed = observed[:, None] if encoder.axes == "CHW" else observed[..., None]
    completed[held] = np.where(observed, pixels, completed[held])
    return Images(completed, list(ids))
