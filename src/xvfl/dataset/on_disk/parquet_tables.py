"""Which tables a run streams, opened: the parties' and the labels'."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from xvfl.data.parquet import ParquetTable, is_parquet, open_parquet
from xvfl.errors import ConfigError, InputError, unknown

MOST_CELLS = 100_000_000
"""Cells of all tables together up to which they are held in memory unless the user says otherwise:
about 3 GB while they are read."""


@dataclass(frozen=True)
class ParquetTables:
    """The parties' tables and the labels, in their files."""

    parties: dict[str, ParquetTable]
    labels: ParquetTable
    column: str
    """The label column."""
    label_party: str | None
    """The party whose table holds it; None where the labels are a table of their own."""

    @property
    def where(self) -> str:
        """Say which column of which file the labels are."""
        return f"{self.labels.where}, column {self.column!r}"

    def stamps(self) -> list[Any]:
        """Tell this state of the files from a later one."""
        return [self.column, *(table.stamp() for table in (*self.parties.values(), self.labels))]


def wanted(streamed: bool | Literal["auto"], tables: list[str], base: Path) -> bool:
    """Decide whether tables are streamed: asked for, or too many cells of Parquet to hold."""
    all_parquet = all(is_parquet(each) for each in tables)
    if streamed is True and not all_parquet:
        other = next(each for each in tables if not is_parquet(each))
        raise ConfigError(
            f"streamed: expected every table in a .parquet file, got {other!r}; convert it, or "
            "leave `streamed` out"
        )
    if streamed == "auto":
        return all_parquet and sum(_cells(base / each) for each in tables) > MOST_CELLS
    return streamed


def _cells(path: Path) -> int:
    import pyarrow.parquet

    with suppress(OSError, ValueError):
        about = pyarrow.parquet.read_metadata(path)
        return int(about.num_rows) * int(about.num_columns)
    return 0


def open_tables(
    parties: Mapping[str, tuple[str, str | None]],
    labels: tuple[str, str | None] | str,
    column: str,
    base: Path,
) -> ParquetTables:
    """Open the parties' tables (file and id column) and the labels': a table, or a party's name."""
    opened = {
        name: open_parquet(base / table, id_column, f"party {name!r}")
        for name, (table, id_column) in parties.items()
    }
    if not isinstance(labels, str):
        where = open_parquet(base / labels[0], labels[1], "labels")
        return ParquetTables(opened, _with(where, column), column, None)
    table = _with(opened[labels], column)
    opened[labels] = table.leave_out(column)
    return ParquetTables(opened, table, column, labels)


def _with(table: ParquetTable, column: str) -> ParquetTable:
    if column not in table.names:
        raise InputError(f"{table.where}: {unknown('label column', column, table.names)}")
    return table
