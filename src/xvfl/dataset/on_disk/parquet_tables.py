"""The Parquet tables of a run: the parties' and the labels'."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from xvfl.config import Config
from xvfl.data.labels import require_label_column
from xvfl.data.parquet import ParquetTable, is_parquet, open_parquet
from xvfl.errors import ConfigError

MAX_CELLS_IN_MEMORY = 100_000_000
"""Without `out_of_core`, the largest number of cells prepared in memory: about 3 GB."""


@dataclass(frozen=True)
class ParquetLabels:
    """The label column of a Parquet table."""

    table: ParquetTable
    column: str

    @property
    def where(self) -> str:
        """File and column, for messages."""
        return f"{self.table.where}, column {self.column!r}"

    def __iter__(self) -> Iterator[pd.Series]:
        """Read the labels in chunks, indexed by id."""
        for frame in self.table.chunks([self.column]):
            yield frame[self.column]


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


def trains_from_disk(config: Config, base: Path) -> bool:
    """Decide whether a run keeps its tables on disk; by default, large Parquet files."""
    tables = [party.table for party in config.parties.values()]
    if config.labels.table is not None:
        tables.append(config.labels.table)
    others = [each for each in tables if not is_parquet(each)]
    if config.out_of_core is True and others:
        raise ConfigError(
            f"out_of_core: expected every table in a .parquet file, got {others[0]!r}; convert it, "
            "or remove `out_of_core`"
        )
    if config.out_of_core is None:
        return not others and sum(_cells(base / each) for each in tables) > MAX_CELLS_IN_MEMORY
    return config.out_of_core


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
