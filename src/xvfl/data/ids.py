"""Ids: one per row, never missing, never twice, compared as strings."""

import numpy as np
import pandas as pd

from xvfl.data.text import as_text
from xvfl.errors import InputError


def check_ids(raw: pd.Series, where: str, start: int = 0) -> pd.Index:
    """Give the ids as strings, or say which one is missing or repeated.

    `where` opens the message: whose table it is, which file, which column. `start` is the first of
    these rows in their table.
    """
    missing = raw.isna().to_numpy(dtype=bool)
    if not missing.any():
        texts = as_text(raw).str.strip()
        missing = (texts == "").to_numpy(dtype=bool)
    if missing.any():
        raise InputError(
            f"{where}: expected an id in every row, but {missing.sum()} of {len(raw)} are missing, "
            f"first in data row {start + int(np.argmax(missing)) + 1}; fill them in or remove "
            "these rows"
        )
    repeated = texts.duplicated()
    if repeated.any():
        first = int(np.argmax(repeated.to_numpy(dtype=bool)))
        raise InputError(
            f"{where}: expected each id once, but {int(repeated.sum())} rows repeat an earlier id, "
            f"first {texts.iloc[first]!r} in data row {start + first + 1}; keep one row per id"
        )
    ids: pd.Index = pd.Index(texts.to_numpy(dtype=object), dtype="str", name="id")
    return ids
