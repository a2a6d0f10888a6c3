"""Read the held-out rows of a run that was trained from disk."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pandas as pd

from xvfl.data.id_index import IdIndex
from xvfl.data.join import join_tables
from xvfl.data.labels import plain_type
from xvfl.data.parquet import open_parquet
from xvfl.dataset.on_disk.parquet_tables import ParquetTables
from xvfl.dataset.overlap import check_index
from xvfl.errors import InputError
from xvfl.primitives.task import Task

HELD_OUT_IDS, LABELS = "held-out ids", "all labels"
"""Names beside those of the parties; a party's name has no space."""


def held_out_chunks(
    tables: ParquetTables, held_out: Path, task: Task, folder: Path
) -> Iterator[tuple[dict[str, pd.DataFrame], pd.Series]]:
    """Yield the parties' rows and the labels of the held-out ids that the tables still have."""
    column, labels_table = tables.labels.column, tables.labels.table
    others = [name for name in labels_table.names if name not in (labels_table.id_column, column)]
    held_out_ids = open_parquet(held_out, "id", "held-out ids")
    named = {HELD_OUT_IDS: held_out_ids, LABELS: labels_table.exclude(*others), **tables.parties}

    def check(index: IdIndex, names: Mapping[str, str]) -> None:
        check_index(index, {name: names[name] for name in tables.parties})

    joined = join_tables(named, HELD_OUT_IDS, folder, check)
    empty = True
    for _, frames in joined.chunks:
        labels = plain_type(frames[LABELS][column].dropna())
        labels = labels[task.known(labels.to_numpy())]
        sources = {
            name: frames[name][frames[name].index.isin(labels.index)] for name in tables.parties
        }
        if len(labels):
            empty = False
            yield sources, labels
    if empty:
        raise no_held_out_rows(held_out)


def no_held_out_rows(path: Path) -> InputError:
    """Build the error for tables that have none of the held-out ids."""
    return InputError(f"{path}: the tables no longer contain any of the held-out ids")
