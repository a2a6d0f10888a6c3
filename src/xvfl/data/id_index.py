"""Join the ids of tables larger than memory, in a DuckDB database on disk.

A row number counts the rows of a file. A place counts the rows of the federation; see
`xvfl.primitives.rows`.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xvfl.data.ids import duplicate_ids
from xvfl.data.near_ids import IdSample
from xvfl.data.parquet import CHUNK_ROWS, ParquetTable
from xvfl.errors import InputError

MEMORY_LIMIT = "128MB"
"""Memory limit of DuckDB; larger joins spill to the disk."""
FETCH_VECTORS = 16
"""Size of a chunk of a result, in DuckDB vectors of 2048 rows."""

Int64Array = NDArray[np.int64]


class IdIndex:
    """A database of the ids of several tables."""

    def __init__(self, folder: Path) -> None:
        """Create the database in a folder."""
        import duckdb

        self._path = folder / "ids.duckdb"
        self._path.unlink(missing_ok=True)
        settings: dict[str, Any] = {
            "memory_limit": MEMORY_LIMIT,
            "temp_directory": str(folder / "ids.tmp"),
            "preserve_insertion_order": "false",
            "python_enable_replacements": "false",
            "threads": 1,
        }
        self._connection = duckdb.connect(str(self._path), config=settings)
        self._tables = 0

    def add(self, table: ParquetTable) -> str:
        """Insert a table's ids; return the name of the database table (row, id, code)."""
        ids = (frame.index.to_numpy(dtype=object) for frame in table.chunks([]))
        chunks = ((each, np.zeros(len(each), dtype=np.int64)) for each in ids)
        return self.insert(chunks, table.where, table.id_column)

    def insert(
        self, chunks: Iterable[tuple[NDArray[Any], Int64Array]], where: str, id_column: str
    ) -> str:
        """Insert ids, each with a code; reject duplicate ids."""
        name, start = f"t{self._tables}", 0
        self.run(f"CREATE TABLE {name} (row BIGINT, id VARCHAR, code BIGINT)")
        for ids, codes in chunks:
            rows = np.arange(start, start + len(ids))
            start += len(ids)
            self.append(name, row=rows, id=ids, code=codes)
        self._reject_duplicates(name, f"{where}, id column {id_column!r}")
        self._tables += 1
        return name

    def append(self, name: str, **columns: NDArray[Any]) -> None:
        """Append rows to a database table."""
        import pyarrow as pa

        with self._errors():
            self._connection.register("chunk", pa.table(columns))
            self._connection.execute(f"INSERT INTO {name} SELECT {', '.join(columns)} FROM chunk")
            self._connection.unregister("chunk")

    def run(self, query: str) -> list[tuple[Any, ...]]:
        """Run a query with a small result."""
        with self._errors():
            rows: list[tuple[Any, ...]] = self._connection.execute(query).fetchall()
        return rows

    def count(self, table: str, condition: str = "true") -> int:
        """Count the rows of a database table."""
        return int(self.run(f"SELECT count(*) FROM {table} WHERE {condition}")[0][0])

    def count_common(self, table: str, other: str) -> int:
        """Count the ids that two database tables have in common."""
        return int(self.run(f"SELECT count(*) FROM {table} t JOIN {other} o ON o.id = t.id")[0][0])

    def sample_unmatched(self, table: str, other: str, size: int) -> IdSample:
        """Sample the ids of a database table that another one does not have."""
        rows = self.count(table)
        sampled = f"SELECT id FROM {table} USING SAMPLE reservoir({size} ROWS) REPEATABLE (0)"
        self.run(f"CREATE TABLE sampled AS {sampled if rows > size else f'SELECT id FROM {table}'}")
        # The join of a small and a large table needs memory for the small one only.
        query = f"SELECT s.id FROM sampled s JOIN {other} o ON o.id = s.id"
        ids = self.run(f"SELECT id FROM sampled WHERE id NOT IN ({query})")
        self.run("DROP TABLE sampled")
        return IdSample([each for (each,) in ids], min(1.0, size / max(rows, 1)))

    def stream(self, query: str) -> Iterator[dict[str, NDArray[Any]]]:
        """Run a query; yield its result in chunks, as columns."""
        with self._errors():
            result = self._connection.cursor().execute(query)
        while True:
            with self._errors():
                frame = result.fetch_df_chunk(FETCH_VECTORS)
            if not len(frame):
                return
            yield {name: frame[name].to_numpy() for name in frame.columns}

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Convert errors of the database, such as a full disk, to `InputError`."""
        import duckdb

        try:
            yield
        except duckdb.Error as error:
            reason = str(error).partition("\n")[0]
            raise InputError(
                f"{self._path.parent}: the ids could not be matched ({reason}); free disk space "
                "there, or choose another folder"
            ) from error

    def write_places(self, query: str, rows: int, path: Path) -> None:
        """Write the place of each of a file's rows, −1 for none.

        The query selects `row` and `place`, ordered by row.
        """
        done = 0
        with path.open("wb") as file:
            for chunk in self.stream(query):
                row = chunk["row"].astype(np.int64)
                stop = int(row[-1]) + 1
                places = np.full(stop - done, -1, dtype=np.int64)
                places[row - done] = chunk["place"]
                file.write(places.tobytes())
                done = stop
            while done < rows:
                count = min(rows - done, CHUNK_ROWS)
                file.write(np.full(count, -1, dtype=np.int64).tobytes())
                done += count

    def close(self) -> None:
        """Close and remove the database."""
        self._connection.close()
        for name in ("ids.duckdb", "ids.duckdb.wal"):
            (self._path.parent / name).unlink(missing_ok=True)
        with suppress(OSError):
            (self._path.parent / "ids.tmp").rmdir()

    def _reject_duplicates(self, name: str, where: str) -> None:
        if self.run(f"SELECT count(DISTINCT id) FROM {name}")[0][0] == self.count(name):
            return
        duplicates = self.run(
            f"SELECT id, count(*) - 1 AS more, list_sort(list(row))[2] AS row FROM {name} "
            "GROUP BY id HAVING count(*) > 1 ORDER BY row"
        )
        first, _, row = duplicates[0]
        raise duplicate_ids(where, sum(each[1] for each in duplicates), first, row)


def read_places(path: Path) -> Iterator[Int64Array]:
    """Read places in chunks that match those of their table."""
    with path.open("rb") as file:
        while data := file.read(8 * CHUNK_ROWS):
            yield np.frombuffer(data, dtype=np.int64)
