"""Decide where each labelled row goes: training rows first, then validation, then test.

Ids are matched and rows are divided as in memory, class by class, in memory that does not grow with
them. At most `MOST_VALIDATION` rows validate; what is over trains.
"""

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from xvfl.data.id_index import Ids, Whole
from xvfl.dataset.on_disk.block_file import RowWriter
from xvfl.dataset.on_disk.label_pieces import Classes, labelled_ids
from xvfl.dataset.on_disk.parquet_tables import ParquetTables
from xvfl.dataset.prepare import Splits
from xvfl.errors import DataWarning, InputError
from xvfl.primitives.random import shuffled

MOST_VALIDATION = 100_000
"""Rows that validation and calibration are computed on at most."""
ROWS, HELD_OUT = "rows.bin", "held_out.parquet"


@dataclass(frozen=True)
class Parts:
    """How many rows train, validate and test."""

    train: int
    validation: int
    test: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.train + self.validation + self.test


def place_rows(
    tables: ParquetTables, classes: Classes, splits: Splits, folder: Path
) -> tuple[list[Any], Parts]:
    """Match the ids, divide the rows, and write where each party's rows go.

    Also gives the classes of matched rows; their numbers in the file count these alone.
    """
    ids = Ids(folder)
    try:
        labels, party = _insert(ids, tables, classes)
        counts = _match(ids, tables, labels, party)
        parts = _divide(ids, counts, splits, folder, len(party))
        for i, (name, table) in enumerate(tables.parties.items()):
            query = f"SELECT r{i} AS row, place FROM placed WHERE r{i} >= 0 ORDER BY row"
            ids.write_places(query, len(table), folder / places_of(name))
        _write_held_out(ids, labels, parts, folder / HELD_OUT)
    finally:
        ids.close()
    return [classes.names[y] for y in counts], parts


def places_of(party: str) -> str:
    """Name the file that says where a party's rows go."""
    return f"places-{party}.bin"


def _insert(ids: Ids, tables: ParquetTables, classes: Classes) -> tuple[str, dict[str, str]]:
    labelled = labelled_ids(tables, classes)
    labels = ids.insert(labelled, tables.labels.where, tables.labels.id_column)
    party = {
        name: labels if name == tables.label_party else ids.add(table)
        for name, table in tables.parties.items()
    }
    return labels, party


def _match(
    ids: Ids, tables: ParquetTables, labels: str, party: Mapping[str, str]
) -> dict[int, int]:
    """Join the parties' rows to the labels; count the rows of each class that somebody holds."""
    ids.run(f"CREATE TABLE matched0 AS SELECT row, id, said AS y FROM {labels} WHERE said >= 0")
    # One at a time: a join of them all would hold the ids of all of them in memory.
    for i, name in enumerate(party.values()):
        row, join = "l.row", ""
        if name != labels:
            row, join = "coalesce(t.row, -1)", f"LEFT JOIN {name} t ON t.id = l.id"
        ids.run(
            f"CREATE TABLE matched{i + 1} AS SELECT l.*, {row} AS r{i} FROM matched{i} l {join}"
        )
        ids.run(f"DROP TABLE matched{i}")
    ids.run(f"CREATE TABLE matched AS SELECT * EXCLUDE (id) FROM matched{len(party)}")
    ids.run(f"DROP TABLE matched{len(party)}")
    for i, name in enumerate(party):
        if not ids.run(f"SELECT count(*) FROM matched WHERE r{i} >= 0")[0][0]:
            first = ids.run(f"SELECT id FROM {party[name]} ORDER BY row LIMIT 1")
            known = ids.run(f"SELECT id FROM {labels} ORDER BY row LIMIT 1")
            raise InputError(
                f"party {name!r}: shares no id with the labels (its first id is "
                f"{first[0][0] if first else None!r}, the labels' first is {known[0][0]!r}); "
                "check that both use the same id column"
            )
    held = " OR ".join(f"r{i} >= 0" for i in range(len(party)))
    total = ids.run("SELECT count(*) FROM matched")[0][0]
    ids.run(f"DELETE FROM matched WHERE NOT ({held})")
    counts = dict(ids.run("SELECT y, count(*) FROM matched GROUP BY y ORDER BY y"))
    lost = total - sum(counts.values())
    if lost:
        warnings.warn(
            f"{lost} of {total} labelled ids are held by no party and were dropped",
            DataWarning,
            stacklevel=5,
        )
    return counts


def _divide(
    ids: Ids, counts: Mapping[int, int], splits: Splits, folder: Path, parties: int
) -> Parts:
    """Give every matched row its place; write its class to the coordinator's file."""
    sizes = {y: _sizes(count, sum(counts.values()), splits) for y, count in counts.items()}
    totals = [sum(each) for each in zip(*sizes.values(), strict=True)]
    parts = Parts(*totals)
    held = ", ".join(f"r{i} BIGINT" for i in range(parties))
    ids.run(f"CREATE TABLE placed (place BIGINT, row BIGINT, {held})")
    writer = RowWriter(folder / ROWS, parts.total, np.int32, 1 + parties)
    number = np.zeros(max(counts) + 1, dtype=np.int32)
    number[list(counts)] = np.arange(len(counts))
    for place, piece in _placed(ids.stream("SELECT * FROM matched ORDER BY row"), sizes, splits):
        known = np.full((len(place), 1 + parties), -1, dtype=np.int32)
        known[:, 0] = number[piece["y"]]
        writer.put(place, known)
        kept = {name: piece[name] for name in ("row", *(f"r{i}" for i in range(parties)))}
        ids.append("placed", place=place, **kept)
    return parts


def _sizes(count: int, total: int, splits: Splits) -> tuple[int, int, int]:
    test = round(splits.test * count)
    validation = round(splits.validation * (count - test))
    validation = min(validation, max(1, MOST_VALIDATION * count // total))
    return count - test - validation, validation, test


def _placed(
    pieces: Iterator[dict[str, NDArray[Any]]],
    sizes: Mapping[int, tuple[int, int, int]],
    splits: Splits,
) -> Iterator[tuple[Whole, dict[str, NDArray[Any]]]]:
    met = dict.fromkeys(sizes, 0)
    train, validation, _ = (sum(each) for each in zip(*sizes.values(), strict=True))
    begun = np.array([0, train, train + validation])
    for piece in pieces:
        part = np.zeros(len(piece["y"]), dtype=np.int64)
        for y in np.unique(piece["y"]).tolist():
            mine = np.flatnonzero(piece["y"] == y)
            turn = torch.arange(met[y], met[y] + len(mine))
            met[y] += len(mine)
            drawn = shuffled(turn, sum(sizes[y]), splits.seed, "split", y).numpy()
            _, for_validation, for_test = sizes[y]
            part[mine] = np.select([drawn < for_test, drawn < for_test + for_validation], [2, 1], 0)
        place = np.zeros(len(part), dtype=np.int64)
        for which in range(3):
            mine = np.flatnonzero(part == which)
            place[mine] = begun[which] + np.arange(len(mine))
            begun[which] += len(mine)
        yield place, piece


def _write_held_out(ids: Ids, labels: str, parts: Parts, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    start = parts.train if not parts.test else parts.train + parts.validation
    query = (
        f"SELECT l.id AS id FROM placed p JOIN {labels} l ON l.row = p.row "
        f"WHERE p.place >= {start} ORDER BY p.place"
    )
    schema = pa.schema([("id", pa.string())])
    with pyarrow.parquet.ParquetWriter(path, schema) as writer:
        for piece in ids.stream(query):
            writer.write_table(pa.table({"id": pa.array(piece["id"], pa.string())}))
