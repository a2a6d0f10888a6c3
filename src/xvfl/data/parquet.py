"""Parquet files of any size, read in chunks of a fixed number of rows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from xvfl.data.frames import index_by_id
from xvfl.data.ids import require_id_column
from xvfl.data.table_files import read_errors, reject_duplicate_columns, require_file
from xvfl.errors import InputError, unknown

CHUNK_ROWS = 32_768
"""Rows of a chunk: a multiple of the prediction batch size, so that streamed prediction uses the
same batches as prediction in memory."""
READ_BYTES = 1 << 20
"""Read buffer of a column in bytes; a row group may be larger than memory."""


@dataclass(frozen=True)
class ParquetTable:
    """A table that stays in its file."""

    path: Path
    id_column: str
    owner: str
    """The owner for messages: "party 'bank'", "labels"."""
    excluded: tuple[str, ...] = ()
    """Columns that are not features, such as the label."""

    @property
    def where(self) -> str:
        """Owner and file, for messages."""
        return f"{self.owner}, file {self.path}"

    @cached_property
    def names(self) -> list[str]:
        """All columns of the file, without a pandas index unless it holds the ids."""
        with read_errors(self.path, self.where):
            schema = self._file().schema_arrow
        reject_duplicate_columns(schema.names, self.where)
        index = (schema.pandas_metadata or {}).get("index_columns", [])
        names = [name for name in schema.names if name == self.id_column or name not in index]
        if self.id_column not in names:
            raise InputError(f"{self.where}: {unknown('id column', self.id_column, names)}")
        return names

    @cached_property
    def columns(self) -> list[str]:
        """The feature columns."""
        return [name for name in self.names if name not in (self.id_column, *self.excluded)]

    def __len__(self) -> int:
        with read_errors(self.path, self.where):
            rows: int = self._file().metadata.num_rows
        return rows

    def __iter__(self) -> Iterator[pd.DataFrame]:
        return self.chunks()

    def exclude(self, *columns: str) -> "ParquetTable":
        """Remove columns from the features."""
        return replace(self, excluded=(*self.excluded, *columns))

    def chunks(self, columns: Sequence[str] | None = None) -> Iterator[pd.DataFrame]:
        """Read frames indexed by id, with all features or the given columns."""
        start = 0
        names = self.columns if columns is None else list(columns)
        for chunk in self.arrow_chunks([self.id_column, *names]):
            yield self.frame(chunk, start)[names]
            start += chunk.num_rows

    def arrow_chunks(self, columns: Sequence[str]) -> Iterator[Any]:
        """Read Arrow tables of `CHUNK_ROWS` rows; the last one may be shorter."""
        import pyarrow as pa

        assert self.names
        batches, pending = [], 0
        with read_errors(self.path, self.where):
            for batch in self._file().iter_batches(CHUNK_ROWS, columns=list(columns)):
                batches.append(batch)
                pending += batch.num_rows
                if pending >= CHUNK_ROWS:
                    table = pa.Table.from_batches(batches).unify_dictionaries()
                    yield table.slice(0, CHUNK_ROWS)
                    batches = table.slice(CHUNK_ROWS).to_batches()
                    pending -= CHUNK_ROWS
        if pending:
            yield pa.Table.from_batches(batches).unify_dictionaries()

    def frame(self, chunk: Any, start: int = 0) -> pd.DataFrame:
        """Convert an Arrow chunk, the rows from `start` on, to a frame indexed by id."""
        return index_by_id(chunk.to_pandas(), self.id_column, True, self.where, start)

    def empty(self) -> pd.DataFrame:
        """Return a frame of the features without rows."""
        schema = self._file().schema_arrow
        return self.frame(schema.empty_table().select([self.id_column, *self.columns]))

    def version(self) -> list[Any]:
        """Return what changes when the file changes: path, size and time."""
        status = self.path.stat()
        return [str(self.path), self.id_column, status.st_size, status.st_mtime_ns]

    def _file(self) -> Any:
        import pyarrow.parquet

        return pyarrow.parquet.ParquetFile(self.path, buffer_size=READ_BYTES, pre_buffer=False)


def open_parquet(path: Path, id_column: str | None, owner: str) -> ParquetTable:
    """Open a Parquet file as a table."""
    where = f"{owner}, file {path}"
    id_column = require_id_column(id_column, where)
    require_file(path, where)
    return ParquetTable(path, id_column, owner)


def is_parquet(table: object) -> bool:
    """Tell whether a table is a path ending in .parquet."""
    if not isinstance(table, str | Path):
        return False
    return not str(table).startswith("sql:") and Path(table).suffix.lower() == ".parquet"
