"""Match the ids of tables larger than memory: DuckDB joins them on disk.

Row numbers count the rows of a file; places count the rows of the federation.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xvfl.data.parquet import ROWS_AT_ONCE, ParquetTable
from xvfl.errors import InputError

MEMORY = "128MB"
"""What DuckDB may hold in memory; the rest of a join goes to the disk."""
VECTORS = 16
"""Rows of an answer given at once, in DuckDB's unit of 2048."""

Whole = NDArray[np.int64]


class Ids:
    """Ids of several tables, in a database beside the run."""

    def __init__(self, folder: Path) -> None:
        """Make the database."""
        import duckdb

        self._path = folder / "ids.duckdb"
        self._path.unlink(missing_ok=True)
        settings: dict[str, Any] = {
            "memory_limit": MEMORY,
            "temp_directory": str(folder / "ids.tmp"),
            "preserve_insertion_order": "false",
            "python_enable_replacements": "false",
            "threads": 1,
        }
        self._connection = duckdb.connect(str(self._path), config=settings)
        self.tables: list[str] = []

    def add(self, table: ParquetTable) -> str:
        """Take in a table's ids, each of which must occur once; give its name."""
        return self.insert(((ids, None) for ids in table.ids()), table.where, table.id_column)

    def insert(
        self, pieces: Iterable[tuple[NDArray[Any], Whole | None]], where: str, column: str
    ) -> str:
        """Take in ids, and a number beside each; each id must occur once."""
        name, start = f"t{len(self.tables)}", 0
        self.run(f"CREATE TABLE {name} (row BIGINT, id VARCHAR, said INTEGER)")
        for ids, said in pieces:
            rows = np.arange(start, start + len(ids))
            start += len(ids)
            if said is None:
                said = np.zeros(len(ids), dtype=np.int64)
            self.append(name, row=rows, id=ids, said=said)
        self._refuse_repeated(name, f"{where}, id column {column!r}")
        self.tables.append(name)
        return name

    def append(self, name: str, **columns: NDArray[Any]) -> None:
        """Add rows to a table."""
        import pyarrow as pa

        with self._refusing():
            self._connection.register("piece", pa.table(columns))
            self._connection.execute(f"INSERT INTO {name} SELECT {', '.join(columns)} FROM piece")
            self._connection.unregister("piece")

    def run(self, query: str) -> list[tuple[Any, ...]]:
        """Run a query whose answer is small."""
        with self._refusing():
            found: list[tuple[Any, ...]] = self._connection.execute(query).fetchall()
        return found

    def stream(self, query: str) -> Iterator[dict[str, NDArray[Any]]]:
        """Give a query's answer in pieces, as columns."""
        with self._refusing():
            result = self._connection.cursor().execute(query)
        while True:
            with self._refusing():
                frame = result.fetch_df_chunk(VECTORS)
            if not len(frame):
                return
            yield {name: frame[name].to_numpy() for name in frame.columns}

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """Say in our words that there is no space on the disk, or too little memory."""
        import duckdb

        try:
            yield
        except duckdb.Error as error:
            reason = str(error).partition("\n")[0]
            raise InputError(
                f"{self._path.parent}: the ids could not be matched ({reason}); make space there, "
                "or choose another folder"
            ) from error

    def write_places(self, query: str, rows: int, path: Path) -> None:
        """Write the place of each of a file's rows, −1 where it has none.

        The query gives `row` and `place`, by row.
        """
        done = 0
        with path.open("wb") as file:
            for piece in self.stream(query):
                row = piece["row"].astype(np.int64)
                stop = int(row[-1]) + 1
                places = np.full(stop - done, -1, dtype=np.int64)
                places[row - done] = piece["place"]
                file.write(places.tobytes())
                done = stop
            while done < rows:
                some = min(rows - done, ROWS_AT_ONCE)
                file.write(np.full(some, -1, dtype=np.int64).tobytes())
                done += some

    def close(self) -> None:
        """Close and remove the database."""
        self._connection.close()
        for name in ("ids.duckdb", "ids.duckdb.wal"):
            (self._path.parent / name).unlink(missing_ok=True)
        with suppress(OSError):
            (self._path.parent / "ids.tmp").rmdir()

    def _refuse_repeated(self, name: str, where: str) -> None:
        found = self.run(
            f"SELECT id, count(*) - 1 AS more, list_sort(list(row))[2] AS again FROM {name} "
            "GROUP BY id HAVING count(*) > 1 ORDER BY again"
            if self._repeats(name)
            else "SELECT 1 WHERE false"
        )
        if found:
            raise InputError(
                f"{where}: expected each id once, but {sum(each[1] for each in found)} rows repeat "
                f"an earlier id, first {found[0][0]!r} in data row {found[0][2] + 1}; "
                "keep one row per id"
            )

    def _repeats(self, name: str) -> bool:
        rows, distinct = self.run(f"SELECT count(*), count(DISTINCT id) FROM {name}")[0]
        return bool(rows != distinct)


def read_places(path: Path) -> Iterator[Whole]:
    """Give places in pieces that go with those of their table."""
    with path.open("rb") as file:
        while data := file.read(8 * ROWS_AT_ONCE):
            yield np.frombuffer(data, dtype=np.int64)
