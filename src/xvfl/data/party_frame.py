"""One frame for all parties: columns are (party, column) pairs, the index holds the ids.

Tools of scikit-learn select rows of such a frame. `pd.concat(tables, axis=1)` builds it from a
dictionary of tables that are indexed by id.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from xvfl.data.ids import id_texts, parse_ids
from xvfl.errors import InputError


def is_party_frame(tables: Any) -> bool:
    """Return whether tables are given as one frame with (party, column) columns."""
    return isinstance(tables, pd.DataFrame) and tables.columns.nlevels == 2


def split_frame(frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Split a frame into the tables of the parties.

    A row of which a party has no value is not held by the party. A row without any value stays at
    the first party.
    """
    parse_ids(frame.index.to_series(), "X, index")
    names = frame.columns.unique(0)
    tables = {str(name): pd.DataFrame(frame.xs(name, axis=1, level=0)) for name in names}
    held = {name: table.notna().to_numpy().any(1) for name, table in tables.items()}
    first = next(iter(tables))
    held[first] |= ~np.stack(list(held.values())).any(0)
    return {name: table.iloc[np.flatnonzero(held[name])] for name, table in tables.items()}


def labels_of_frame(frame: pd.DataFrame, y: Any) -> pd.Series:
    """Index labels by the ids of a frame: a Series of the same ids, or values in its row order."""
    if isinstance(y, pd.DataFrame) and y.shape[1] == 1:
        y = y.iloc[:, 0]
    if isinstance(y, pd.Series):
        others = (
            set()
            if y.index.equals(frame.index)
            else {*id_texts(y.index)} - {*id_texts(frame.index)}
        )
        if others:
            raise InputError(
                "y: expected the ids of X as its index, got other ids, such as "
                f"{min(others)!r}; for labels in the order of the rows, pass y.to_numpy()"
            )
        return y
    values = np.asarray(y)
    if values.shape != (len(frame),):
        raise InputError(
            f"y: expected one label for each of the {len(frame)} rows of X, got the shape "
            f"{values.shape}"
        )
    return pd.Series(values, index=frame.index)


def weights_by_id(weights: Any, ids: Sequence[Any] | pd.Index) -> pd.Series:
    """Index sample weights by the text of ids: a Series by id, or values in the order of `ids`."""
    if isinstance(weights, pd.Series):
        ids = weights.index
    values = np.asarray(weights, dtype=np.float64)
    if values.shape != (len(ids),):
        raise InputError(
            f"sample_weight: expected one weight for each of the {len(ids)} labels, got the shape "
            f"{values.shape}"
        )
    if not (np.isfinite(values).all() and (values >= 0).all()):
        raise InputError(
            "sample_weight: expected finite numbers of at least 0; got "
            f"{values.min():g} to {values.max():g}"
        )
    if not values.any():
        raise InputError("sample_weight: every weight is zero; give some rows a positive weight")
    return pd.Series(values, index=pd.Index(id_texts(ids)))
