"""Parquet files read in pieces of a fixed number of rows, so that any size passes through."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from xvfl.data.frames import indexed, reading, refuse_repeated
from xvfl.errors import InputError, unknown

ROWS_AT_ONCE = 32_768
"""Rows of a piece: a multiple of the rows predicted at once, so that a stream predicts the very
same batches as a whole table."""
READ_BYTES = 1 << 20
"""Bytes read of a column at once; a row group may be larger than memory."""


@dataclass(frozen=True)
class ParquetTable:
    """A table that stays in its file."""

    path: Path
    id_column: str
    owner: str
    """How messages name whose it is: "party 'bank'", "labels"."""
    without: tuple[str, ...] = ()
    """Columns that do not count: the label."""

    @property
    def where(self) -> str:
        """Say whose table it is and which file."""
        return f"{self.owner}, file {self.path}"

    @cached_property
    def names(self) -> list[str]:
        """Every column of the file; an index that pandas stored is none unless it holds ids."""
        with reading(self.path, self.where):
            schema = self._file().schema_arrow
        refuse_repeated(schema.names, self.where)
        index = (schema.pandas_metadata or {}).get("index_columns", [])
        names = [name for name in schema.names if name == self.id_column or name not in index]
        if self.id_column not in names:
            raise InputError(f"{self.where}: {unknown('id column', self.id_column, names)}")
        return names

    @cached_property
    def columns(self) -> list[str]:
        """The feature columns."""
        return [name for name in self.names if name not in (self.id_column, *self.without)]

    def __len__(self) -> int:
        with reading(self.path, self.where):
            rows: int = self._file().metadata.num_rows
        return rows

    def leave_out(self, column: str) -> "ParquetTable":
        """Take a column out of the features."""
        return replace(self, without=(*self.without, column))

    def frames(self, columns: Sequence[str] | None = None) -> Iterator[pd.DataFrame]:
        """Give the rows in pieces, indexed by id; `columns` instead of the features."""
        start = 0
        wanted = self.columns if columns is None else list(columns)
        for piece in self.pieces([self.id_column, *wanted]):
            yield self.frame(piece, start)[wanted]
            start += piece.num_rows

    def pieces(self, columns: Sequence[str]) -> Iterator[Any]:
        """Give Arrow tables of `ROWS_AT_ONCE` rows, the last one with the rest."""
        import pyarrow as pa

        assert self.names
        batches, held = [], 0
        with reading(self.path, self.where):
            for batch in self._file().iter_batches(ROWS_AT_ONCE, columns=list(columns)):
                batches.append(batch)
                held += batch.num_rows
                if held >= ROWS_AT_ONCE:
                    whole = pa.Table.from_batches(batches).unify_dictionaries()
                    yield whole.slice(0, ROWS_AT_ONCE)
                    batches = whole.slice(ROWS_AT_ONCE).to_batches()
                    held -= ROWS_AT_ONCE
        if held:
            yield pa.Table.from_batches(batches).unify_dictionaries()

    def frame(self, piece: Any, start: int = 0) -> pd.DataFrame:
        """Turn a piece, the rows from `start` on, into a frame indexed by id."""
        return indexed(piece.to_pandas(), self.id_column, True, self.where, start)

    def empty(self) -> pd.DataFrame:
        """Give a frame of the features without rows."""
        schema = self._file().schema_arrow
        return self.frame(schema.empty_table().select([self.id_column, *self.columns]))

    def ids(self) -> Iterator[np.ndarray[Any, Any]]:
        """Give the ids in pieces."""
        for frame in self.frames([]):
            yield frame.index.to_numpy(dtype=object)

    def stamp(self) -> list[Any]:
        """Tell this state of the file from a later one."""
        about = self.path.stat()
        return [str(self.path), self.id_column, about.st_size, about.st_mtime_ns]

    def _file(self) -> Any:
        import pyarrow.parquet

        return pyarrow.parquet.ParquetFile(self.path, buffer_size=READ_BYTES, pre_buffer=False)


def open_parquet(path: Path, id_column: str | None, owner: str) -> ParquetTable:
    """Open a Parquet file as a table."""
    where = f"{owner}, file {path}"
    if id_column is None:
        raise InputError(
            f"{where}: only a pandas frame has an index to take ids from; name the id column"
        )
    if not path.is_file():
        raise InputError(f"{where}: there is no such file; check the path")
    return ParquetTable(path, id_column, owner)


def is_parquet(table: object) -> bool:
    """Say whether a table is named as a Parquet file."""
    if not isinstance(table, str | Path):
        return False
    return not str(table).startswith("sql:") and Path(table).suffix.lower() == ".parquet"
