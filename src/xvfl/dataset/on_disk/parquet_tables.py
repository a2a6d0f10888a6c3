"""The Parquet tables of a run: the parties' and the labels'."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from xvfl.data.labels import require_label_column
from xvfl.data.parquet import ParquetTable, is_parquet, open_parquet
from xvfl.errors import ConfigError

MAX_CELLS_IN_MEMORY = 100_000_000
"""With `out_of_core = "auto"`, the largest number of cells prepared in memory: about 3 GB."""


@dataclass(frozen=True)
class ParquetLabels:
    """The label column of a Parquet table."""

    table: ParquetTable
    column: str

    @property
    def where(self) -> str:
        """File and column, for messages."""
        return f"{self.table.where}, column {self.column!r}"

    def chunks(self) -> Iterator[pd.Series]:
        """Read the labels in chunks, indexed by id."""
        for frame in self.table.chunks([self.column]):
            yield frame[self.column]

    def first_id(self) -> str | None:
        """Return the first row's id."""
        return self.table.first_id()


@dataclass(frozen=True)
class ParquetTables:
    """The tables of a run that is trained from disk."""

    parties: dict[str, ParquetTable]
    labels: ParquetLabels
    label_party: str | None
    """The party whose table holds the labels; None if they have a table of their own."""

    def versions(self) -> list[Any]:
        """Return what changes when a file changes."""
        tables = (*self.parties.values(), self.labels.table)
        return [self.labels.column, *(table.version() for table in tables)]


def trains_from_disk(out_of_core: bool | Literal["auto"], tables: list[str], base: Path) -> bool:
    """Decide whether a run keeps its tables on disk; "auto" does so for large Parquet files."""
    all_parquet = all(is_parquet(each) for each in tables)
    if out_of_core is True and not all_parquet:
        other = next(each for each in tables if not is_parquet(each))
        raise ConfigError(
            f"out_of_core: expected every table in a .parquet file, got {other!r}; convert it, or "
            "remove `out_of_core`"
        )
    if out_of_core == "auto":
        return all_parquet and sum(_cells(base / each) for each in tables) > MAX_CELLS_IN_MEMORY
    return out_of_core


def _cells(path: Path) -> int:
    import pyarrow.parquet

    with suppress(OSError, ValueError):
        metadata = pyarrow.parquet.read_metadata(path)
        return int(metadata.num_rows) * int(metadata.num_columns)
    return 0


def open_tables(
    parties: Mapping[str, tuple[str, str | None]],
    labels: tuple[str, str | None] | str,
    column: str,
    base: Path,
) -> ParquetTables:
    """Open the tables of a run.

    `parties` are pairs of file and id column; `labels` is such a pair or the name of the party
    whose table holds the label column.
    """
    tables = {
        name: open_parquet(base / table, id_column, f"party {name!r}")
        for name, (table, id_column) in parties.items()
    }
    party = labels if isinstance(labels, str) else None
    if isinstance(labels, str):
        table = tables[labels]
        tables[labels] = table.exclude(column)
    else:
        table = open_parquet(base / labels[0], labels[1], "labels")
    require_label_column(column, table.names, table.where)
    return ParquetTables(tables, ParquetLabels(table, column), party)
