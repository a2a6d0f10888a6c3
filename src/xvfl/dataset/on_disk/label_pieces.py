"""Read labels piece by piece: first which classes there are, then the class of each row."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from xvfl.data.frames import check_classes, plain_type
from xvfl.dataset.on_disk.parquet_tables import ParquetTables
from xvfl.dataset.prepare import encode_labels
from xvfl.errors import DataWarning, InputError

MOST_DISTINCT = 100_000
"""More distinct labels than this are no classes."""


@dataclass(frozen=True)
class Classes:
    """The classes, and the number of each label as the file writes it."""

    names: list[Any]
    number: dict[Any, int]


def find_classes(tables: ParquetTables) -> Classes:
    """Find the classes in one pass; warn of rows without a label."""
    found: dict[Any, None] = {}
    rows = labelled = 0
    for cells in _cells(tables):
        there = cells.dropna()
        rows, labelled = rows + len(cells), labelled + len(there)
        found |= dict.fromkeys(there.drop_duplicates().tolist())
        if len(found) > MOST_DISTINCT:
            raise InputError(
                f"{tables.where}: expected classes, but there are more than {MOST_DISTINCT} "
                "distinct labels; bin them into classes first"
            )
    if labelled < rows:
        warnings.warn(
            f"{tables.where}: left out {rows - labelled} of {rows} rows without a label",
            DataWarning,
            stacklevel=4,
        )
    distinct = plain_type(pd.Series(list(found)))
    check_classes(distinct, labelled, tables.where, 2)
    names, y = encode_labels(distinct)
    return Classes(names, dict(zip(found, y.tolist(), strict=True)))


def labelled_ids(
    tables: ParquetTables, classes: Classes
) -> Iterator[tuple[NDArray[Any], NDArray[np.int64]]]:
    """Give each row's id and class number, −1 without a label, in pieces."""
    for cells in _cells(tables):
        y = cells.map(classes.number).fillna(-1).to_numpy(dtype=np.int64)
        yield cells.index.to_numpy(dtype=object), y


def _cells(tables: ParquetTables) -> Iterator[pd.Series]:
    for frame in tables.labels.frames([tables.column]):
        cells = frame[tables.column]
        if isinstance(cells.dtype, pd.CategoricalDtype):
            cells = cells.astype(cells.cat.categories.dtype)
        yield cells
