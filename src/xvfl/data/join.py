"""Walk through the Parquet tables of several parties together, piece by piece, matched by id.

The rows come in the order of one table, or of all in order of appearance. A table in another order
is first dealt out into files, one for each piece of the walk.
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from xvfl.data.id_index import Ids, Whole, read_places
from xvfl.data.parquet import ROWS_AT_ONCE, ParquetTable

T = TypeVar("T")
PLACE = "\0place"
"""A column of dealt rows; no file has one of this name."""


@dataclass(frozen=True)
class JoinedTables:
    """Pieces of a walk through tables, and how many rows they have in all."""

    rows: int
    pieces: Iterator[tuple[list[str], dict[str, pd.DataFrame]]]
    """The ids of a piece, and each table's rows among them, in the walk's order."""


def together(tables: Mapping[str, ParquetTable], lead: str | None, folder: Path) -> JoinedTables:
    """Walk through tables in the order of `lead`, or of all; `folder` takes what is dealt out."""
    first = lead or next(iter(tables))
    ids = Ids(folder)
    try:
        known = {name: ids.add(table) for name, table in tables.items()}
        rows = len(tables[first]) if lead else _join_all(ids, list(known.values()))
        wanted = f"(SELECT row AS place, id FROM {known[first]})" if lead else "wanted"
        for name, table in tables.items():
            if name != first:
                query = (
                    f"SELECT t.row AS row, w.place AS place FROM {known[name]} t "
                    f"JOIN {wanted} w ON w.id = t.id ORDER BY t.row"
                )
                ids.write_places(query, len(table), folder / "places.bin")
                _deal(table, folder / "places.bin", folder / known[name])
    finally:
        ids.close()
    dealt = {name: folder / each for name, each in known.items() if name != first}
    return JoinedTables(rows, _pieces(tables, first, dealt, rows))


def _join_all(ids: Ids, tables: list[str]) -> int:
    """List the ids of all tables in order of appearance, each with its place."""
    ids.run("CREATE TABLE wanted (place BIGINT, id VARCHAR)")
    ids.run(f"INSERT INTO wanted SELECT row, id FROM {tables[0]}")
    count: int = ids.run("SELECT count(*) FROM wanted")[0][0]
    for table in tables[1:]:
        query = (
            f"SELECT t.id AS id FROM {table} t WHERE NOT EXISTS "
            "(SELECT 1 FROM wanted w WHERE w.id = t.id) ORDER BY t.row"
        )
        for piece in ids.stream(query):
            new = len(piece["id"])
            ids.append("wanted", place=np.arange(count, count + new), id=piece["id"])
            count += new
    return count


def _deal(table: ParquetTable, places: Path, folder: Path) -> None:
    import pyarrow as pa

    folder.mkdir()
    columns = [table.id_column, *table.columns]
    for piece, place in zip(table.pieces(columns), read_places(places), strict=True):
        order = np.argsort(place, kind="stable")
        order = order[place[order] >= 0]
        if not len(order):
            continue
        numbers, starts = np.unique(place[order] // ROWS_AT_ONCE, return_index=True)
        for number, rows in zip(numbers.tolist(), np.split(order, starts[1:]), strict=True):
            part = piece.take(rows).append_column(PLACE, pa.array(place[rows]))
            with (
                (folder / str(number)).open("ab") as file,
                pa.ipc.new_stream(file, part.schema) as stream,
            ):
                stream.write_table(part)
    places.unlink()


def _dealt(table: ParquetTable, folder: Path, number: int) -> tuple[Whole, pd.DataFrame]:
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
    whole = pa.concat_tables(parts).unify_dictionaries().sort_by(PLACE)
    places: Whole = whole.column(PLACE).to_numpy()
    return places, table.frame(whole.drop_columns([PLACE]))


def _pieces(
    tables: Mapping[str, ParquetTable], first: str, dealt: Mapping[str, Path], rows: int
) -> Iterator[tuple[list[str], dict[str, pd.DataFrame]]]:
    leading = tables[first].frames()
    for number in range(max(1, -(-rows // ROWS_AT_ONCE))):
        frame = next(leading, None)
        found = {first: tables[first].empty() if frame is None else frame}
        ids: list[str] = found[first].index.tolist()
        more: dict[int, str] = {}
        for name, folder in dealt.items():
            places, found[name] = _dealt(tables[name], folder, number)
            new = places >= number * ROWS_AT_ONCE + len(ids)
            more |= dict(zip(places[new].tolist(), found[name].index[new], strict=True))
        ids += [more[place] for place in sorted(more)]
        yield ids, {name: found[name] for name in tables}


def ahead(pieces: Iterator[T]) -> Iterator[T]:
    """Read the next piece in a thread while the last one is worked on."""
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(next, pieces, None)
        while (piece := waiting.result()) is not None:
            waiting = thread.submit(next, pieces, None)
            yield piece
