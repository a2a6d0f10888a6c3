"""Join the Parquet tables of several parties by id, chunk by chunk.

The rows come in the order of one table, or of all tables in order of appearance. Tables in another
order are first partitioned into one file for each chunk.
"""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from xvfl.data.id_index import IdIndex, Int64Array, read_places
from xvfl.data.parquet import CHUNK_ROWS, ParquetTable

T = TypeVar("T")
PLACE = "\0place"
"""A column added to partitioned rows; no file has a column of this name."""


@dataclass(frozen=True)
class JoinedTables:
    """The chunks of a join, and its number of rows."""

    rows: int
    chunks: Iterator[tuple[list[str], dict[str, pd.DataFrame]]]
    """The ids of a chunk, and each table's rows among them."""


def join_tables(
    tables: Mapping[str, ParquetTable],
    lead: str | None,
    folder: Path,
    check: Callable[[IdIndex, Mapping[str, str]], None],
) -> JoinedTables:
    """Join tables in the order of `lead`, or of all; partitions are written to `folder`.

    `check` is called with the ids: the database, and the name of each table in it.
    """
    first = lead or next(iter(tables))
    index = IdIndex(folder)
    try:
        names = {name: index.add(table) for name, table in tables.items()}
        check(index, names)
        rows = len(tables[first]) if lead else _all_ids(index, list(names.values()))
        order = f"(SELECT row AS place, id FROM {names[first]})" if lead else "all_ids"
        for name, table in tables.items():
            if name != first:
                query = (
                    f"SELECT t.row AS row, o.place AS place FROM {names[name]} t "
                    f"JOIN {order} o ON o.id = t.id ORDER BY t.row"
                )
                index.write_places(query, len(table), folder / "places.bin")
                _partition(table, folder / "places.bin", folder / names[name])
    finally:
        index.close()
    partitions = {name: folder / each for name, each in names.items() if name != first}
    return JoinedTables(rows, _joined_chunks(tables, first, partitions, rows))


def _all_ids(index: IdIndex, tables: list[str]) -> int:
    """List the ids of all tables in order of appearance, each with its place."""
    index.run("CREATE TABLE all_ids (place BIGINT, id VARCHAR)")
    index.run(f"INSERT INTO all_ids SELECT row, id FROM {tables[0]}")
    count = index.count("all_ids")
    for table in tables[1:]:
        query = (
            f"SELECT t.id AS id FROM {table} t WHERE NOT EXISTS "
            "(SELECT 1 FROM all_ids a WHERE a.id = t.id) ORDER BY t.row"
        )
        for chunk in index.stream(query):
            new = len(chunk["id"])
            index.append("all_ids", place=np.arange(count, count + new), id=chunk["id"])
            count += new
    return count


def _partition(table: ParquetTable, places: Path, folder: Path) -> None:
    """Write a table's rows to one file for each chunk of the join."""
    import pyarrow as pa

    folder.mkdir()
    columns = [table.id_column, *table.columns]
    for chunk, place in zip(table.arrow_chunks(columns), read_places(places), strict=True):
        order = np.argsort(place, kind="stable")
        order = order[place[order] >= 0]
        if not len(order):
            continue
        numbers, starts = np.unique(place[order] // CHUNK_ROWS, return_index=True)
        for number, rows in zip(numbers.tolist(), np.split(order, starts[1:]), strict=True):
            part = chunk.take(rows).append_column(PLACE, pa.array(place[rows]))
            with (
                (folder / str(number)).open("ab") as file,
                pa.ipc.new_stream(file, part.schema) as stream,
            ):
                stream.write_table(part)
    places.unlink()


def _read_partition(
    table: ParquetTable, folder: Path, number: int
) -> tuple[Int64Array, pd.DataFrame]:
    path = folder / str(number)
    if not path.exists():
        return np.empty(0, dtype=np.int64), table.empty()
    import pyarrow as pa

    parts: list[Any] = []
    with path.open("rb") as file:
        size = path.stat().st_size
        while file.tell() < size:
            with pa.ipc.open_stream(file) as stream:
                parts.append(stream.read_all())
    path.unlink()
    rows = pa.concat_tables(parts).unify_dictionaries().sort_by(PLACE)
    places: Int64Array = rows.column(PLACE).to_numpy()
    return places, table.frame(rows.drop_columns([PLACE]))


def _joined_chunks(
    tables: Mapping[str, ParquetTable], first: str, partitions: Mapping[str, Path], rows: int
) -> Iterator[tuple[list[str], dict[str, pd.DataFrame]]]:
    leading = tables[first].chunks()
    for number in range(max(1, -(-rows // CHUNK_ROWS))):
        frame = next(leading, None)
        frames = {first: tables[first].empty() if frame is None else frame}
        ids: list[str] = frames[first].index.tolist()
        more: dict[int, str] = {}
        for name, folder in partitions.items():
            places, frames[name] = _read_partition(tables[name], folder, number)
            new = places >= number * CHUNK_ROWS + len(ids)
            more |= dict(zip(places[new].tolist(), frames[name].index[new], strict=True))
        ids += [more[place] for place in sorted(more)]
        yield ids, {name: frames[name] for name in tables}


def prefetch(chunks: Iterator[T]) -> Iterator[T]:
    """Read the next chunk in a thread while the current one is processed."""
    with ThreadPoolExecutor(1) as thread:
        pending = thread.submit(next, chunks, None)
        while (chunk := pending.result()) is not None:
            pending = thread.submit(next, chunks, None)
            yield chunk
