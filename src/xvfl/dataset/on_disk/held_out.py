"""Give the rows a streamed run held out, piece by piece."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from xvfl.data.frames import plain_type
from xvfl.data.join import together
from xvfl.data.parquet import ParquetTable, open_parquet
from xvfl.dataset.on_disk.parquet_tables import ParquetTables
from xvfl.errors import InputError

HELD, LABELS = "held out", "labels of all"
"""Names beside those of parties; no party may have a blank in its name."""


def held_out_pieces(
    tables: ParquetTables, held_out: Path, classes: Sequence[Any], space: Path
) -> Iterator[tuple[dict[str, pd.DataFrame], pd.Series]]:
    """Give the parties' rows and the labels of the ids held out, as far as they are still there."""
    walk = together(
        {
            HELD: open_parquet(held_out, "id", "held-out ids"),
            LABELS: _only(tables.labels, tables.column),
            **tables.parties,
        },
        HELD,
        space,
    )
    found = False
    for _, frames in walk.pieces:
        labels = plain_type(frames[LABELS][tables.column].dropna())
        labels = labels[labels.isin(classes)]
        sources = {
            name: frames[name][frames[name].index.isin(labels.index)] for name in tables.parties
        }
        if len(labels):
            found = True
            yield sources, labels
    if not found:
        raise InputError(f"{held_out}: none of the held-out ids is in the tables any more")


def _only(table: ParquetTable, column: str) -> ParquetTable:
    kept = (table.id_column, column)
    return replace(table, without=tuple(name for name in table.names if name not in kept))
