"""Which rows of a table are new or have changed since an earlier one, by digests of their content.

Shapes: n rows.
"""

from collections.abc import Iterable, Mapping
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

NEW, REPLACED, WITHDRAWN = -1, -2, -3
"""Origins of rows that are not those of the earlier table: a new row, one that has changed, and one
that may not be used. The origin of any other row is its number in the earlier table."""
Digests = NDArray[np.int64]
RowRecord = dict[str, Digests]
"""`ids` and `contents` (digests) of the rows and how often they were released (`releases`), then of
rows that are not in the table any more; `origin` of the rows in the table."""
NO_ROWS: Mapping[str, Digests] = dict.fromkeys(
    ("ids", "contents", "releases", "origin"), np.zeros(0, dtype=np.int64)
)


def is_sent(origin: Tensor) -> Tensor:
    """Return which rows are new or have changed. (n,)"""
    return (origin == NEW) | (origin == REPLACED)


def digest_rows(items: Iterable[bytes], key: bytes) -> Digests:
    """Return a digest of 64 bits, with a secret key, of each item. (n,)"""
    found = (blake2b(each, key=key, digest_size=8).digest() for each in items)
    return np.frombuffer(b"".join(found), dtype="<i8")


def compare_rows(
    base: Mapping[str, Digests], ids: Digests, contents: Digests, gone: Iterable[int]
) -> RowRecord:
    """Return the record of a table's rows, given that of the earlier table.

    Parameters
    ----------
    base
        The record of the earlier table, or `NO_ROWS`.
    ids, contents : array of shape (n,)
        Digests of the rows.
    gone
        Rows that may not be used.
    """
    place = {each: i for i, each in enumerate(base["ids"].tolist())}
    at = np.array([place.get(each, -1) for each in ids.tolist()], dtype=np.int64)
    before, released = (np.append(base[name], 0)[at] for name in ("contents", "releases"))
    held = (at >= 0) & (at < len(base["origin"]))
    origin = np.where(held & (before == contents), at, np.where(held, REPLACED, NEW))
    origin[list(gone)] = WITHDRAWN
    releases = released + np.isin(origin, (NEW, REPLACED))
    former = np.setdiff1d(np.arange(len(base["ids"])), at)
    rows = {"ids": ids, "contents": contents, "releases": releases}
    kept = {name: np.concatenate([each, base[name][former]]) for name, each in rows.items()}
    return {**kept, "origin": origin}
