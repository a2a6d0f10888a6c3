"""Match and split rows on disk: training rows come first, then validation, then test.

Labeled rows are split class by class, in memory that does not grow with their number. At most
`MAX_VALIDATION` rows validate; the rest of them train. Unlabeled rows are the last training rows.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from xvfl.data.id_index import IdIndex, Int64Array, read_places
from xvfl.data.near_ids import IdSample
from xvfl.data.targets import TargetValues
from xvfl.dataset.on_disk.block_file import RowWriter, read_rows
from xvfl.dataset.on_disk.parquet_tables import ParquetTables
from xvfl.dataset.overlap import ALL_PARTIES, LABELS, Overlap
from xvfl.dataset.prepare import IdMatch, Values
from xvfl.dataset.splits import Splits
from xvfl.primitives.random import permute

MAX_VALIDATION = 100_000
"""Largest number of rows for validation and calibration."""
ROWS, HELD_OUT = "rows.bin", "held_out.parquet"
Sizes = Mapping[int, tuple[int, int, int]]
"""By class: how many rows train, validate and test."""


@dataclass(frozen=True)
class SplitSizes:
    """How many rows train, validate and test."""

    train: int
    validation: int
    test: int
    unlabeled: int = 0
    """Of the training rows, the last ones."""

    @property
    def total(self) -> int:
        """All rows."""
        return self.train + self.validation + self.test


class DiskPlacement:
    """Matches ids in a database; writes the places of each party's rows to files."""

    def __init__(self, tables: ParquetTables, folder: Path) -> None:
        """Create the database in a folder."""
        self._tables, self._folder = tables, folder
        self._index = IdIndex(folder)
        self.sizes = SplitSizes(0, 0, 0)

    def match(self, values: Values, unlabeled: bool) -> IdMatch:
        """Match the ids of the labels with those of the parties; optionally keep other ids."""
        self._values = values
        self._insert(values)
        self._select_ids()
        self._join()
        labeled = self._index.count("matched", "code >= 0")
        held = [f"r{i} >= 0" for i in range(len(self._parties))]
        unused = f"NOT ({' OR '.join(held)})"
        self._index.run(f"DELETE FROM matched WHERE {unused}")
        overlap = self._overlap(held)
        if not unlabeled:
            self._index.run("DELETE FROM matched WHERE code < 0")
        return IdMatch(labeled, self._class_sizes(), overlap, self._unmatched)

    def _overlap(self, held: Sequence[str]) -> Overlap:
        """Count the rows of each party; `held` are conditions on the rows of each."""
        several = f"({' + '.join(f'({each})::INTEGER' for each in held)}) > 1"
        names = [*self._tables.parties, ALL_PARTIES]
        return {
            name: {
                "rows": self._index.count("matched", own),
                "shared": self._index.count("matched", f"{own} AND {several}"),
                "labeled": self._index.count("matched", f"{own} AND code >= 0"),
            }
            for name, own in zip(names, [*held, "true"], strict=True)
        }

    def _unmatched(self, name: str, other: str, size: int) -> IdSample:
        """Sample the ids of a table that another table does not have."""
        tables = {
            LABELS: self._labels,
            **dict(zip(self._tables.parties, self._parties, strict=True)),
        }
        return self._index.sample_unmatched(tables[name], tables[other], size)

    def _class_sizes(self) -> dict[int, int]:
        stratum = self._values.stratum
        query = f"SELECT {stratum}, count(*) FROM matched WHERE code >= 0 GROUP BY 1 ORDER BY 1"
        return dict(self._index.run(query))

    def split(self, numbers: Mapping[int, int], splits: Splits) -> "DiskPlacement":
        """Split the matched rows and write their classes, places and held-out ids."""
        self._place(numbers, splits)
        for i, (name, table) in enumerate(self._tables.parties.items()):
            query = f"SELECT r{i} AS row, place FROM placed WHERE r{i} >= 0 ORDER BY row"
            self._index.write_places(query, len(table), self._file(name))
        self._write_held_out()
        self.close()
        return self

    def places(self, party: str) -> Iterator[Int64Array]:
        """Yield the places of each chunk of a party's table, −1 for rows that are not used."""
        return read_places(self._file(party))

    def is_training(self, places: Int64Array) -> NDArray[np.bool_]:
        """Tell which places are training rows."""
        return (places >= 0) & (places < self.sizes.train)

    def label_codes(self, places: Int64Array) -> Int64Array:
        """Return the class number, or the code of the number, at each place; −1 for none."""
        width = 1 + len(self._tables.parties)
        rows = np.memmap(self._folder / ROWS, dtype=np.int32, mode="r").reshape(-1, width)
        return from_int32(np.asarray(rows[places, 0]), self._values)

    def training_codes(self) -> Iterator[Int64Array]:
        """Yield `label_codes` of all training rows, in chunks."""
        left = self.sizes.train
        for rows in read_rows(self._folder / ROWS, 1 + len(self._tables.parties)):
            yield from_int32(rows[: max(left, 0), 0], self._values)
            left -= len(rows)

    def close(self) -> None:
        """Remove the database."""
        self._index.close()

    def remove_files(self) -> None:
        """Remove the files of places."""
        for name in self._tables.parties:
            self._file(name).unlink()

    def _file(self, party: str) -> Path:
        return self._folder / f"places-{party}.bin"

    def _insert(self, values: Values) -> None:
        labels = self._tables.labels
        coded = ((cells.index.to_numpy(dtype=object), values.codes(cells)) for cells in labels)
        self._labels = self._index.insert(coded, labels.table.where, labels.table.id_column)
        self._parties = [
            self._labels if name == self._tables.label_party else self._index.add(table)
            for name, table in self._tables.parties.items()
        ]

    def _select_ids(self) -> None:
        """Select the ids of all tables: table matched0 (row, id, code).

        Rows beyond those of the label table are ids that only parties hold.
        """
        run = self._index.run
        run(f"CREATE TABLE matched0 AS SELECT row, id, code FROM {self._labels}")
        offset = self._index.count(self._labels)
        for name in self._parties:
            run(
                f"INSERT INTO matched0 SELECT row + {offset}, id, -1 FROM {name} t "
                "WHERE NOT EXISTS (SELECT 1 FROM matched0 m WHERE m.id = t.id)"
            )
            offset += self._index.count(name)

    def _join(self) -> None:
        """Join the parties' rows to the ids: table matched (row, code, r0, r1, …)."""
        run, last = self._index.run, len(self._parties)
        label_rows = self._index.count(self._labels)
        # One join at a time: a join of all tables holds the ids of all of them in memory.
        for i, name in enumerate(self._parties):
            row, join = f"CASE WHEN l.row < {label_rows} THEN l.row ELSE -1 END", ""
            if name != self._labels:
                row, join = "coalesce(t.row, -1)", f"LEFT JOIN {name} t ON t.id = l.id"
            run(
                f"CREATE TABLE matched{i + 1} AS SELECT l.*, {row} AS r{i} FROM matched{i} l {join}"
            )
            run(f"DROP TABLE matched{i}")
        run(f"CREATE TABLE matched AS SELECT * EXCLUDE (id) FROM matched{last}")
        run(f"DROP TABLE matched{last}")

    def _place(self, numbers: Mapping[int, int], splits: Splits) -> None:
        """Assign a place to every matched row; write its class to the coordinator's file."""
        # Code −1, an unlabeled row, selects the last entry.
        number = np.full(max(numbers) + 2, -1, dtype=np.int32)
        number[list(numbers)] = list(numbers.values())
        by_class = {int(number[code]): count for code, count in self._class_sizes().items()}
        labeled = sum(by_class.values())
        sizes = {y: _split_sizes(n, labeled, splits) for y, n in by_class.items()}
        train, validation, test = (sum(part) for part in zip(*sizes.values(), strict=True))
        unlabeled = self._index.count("matched") - labeled
        self.sizes = SplitSizes(train + unlabeled, validation, test, unlabeled)
        columns = [f"r{i}" for i in range(len(self._parties))]
        declared = ", ".join(f"{column} BIGINT" for column in columns)
        self._index.run(f"CREATE TABLE placed (place BIGINT, row BIGINT, {declared})")
        width = 1 + len(columns)
        writer = RowWriter(self._folder / ROWS, self.sizes.total, np.int32, width)
        begins = np.cumsum([0, train, unlabeled, validation])
        done = dict.fromkeys(sizes, 0)
        for chunk in self._index.stream("SELECT * FROM matched ORDER BY row"):
            y = number[self._values.strata(chunk["code"])]
            place = _places(_parts(y, sizes, done, splits.seed), begins)
            rows = np.full((len(place), width), -1, dtype=np.int32)
            rows[:, 0] = y
            if isinstance(self._values, TargetValues):
                rows[:, 0] = chunk["code"].astype(np.uint32).view(np.int32)
            writer.put(place, rows)
            self._index.append("placed", place=place, **{n: chunk[n] for n in ("row", *columns)})

    def _write_held_out(self) -> None:
        sizes = self.sizes
        start = sizes.train if not sizes.test else sizes.train + sizes.validation
        query = (
            f"SELECT l.id AS id FROM placed p JOIN {self._labels} l ON l.row = p.row "
            f"WHERE p.place >= {start} ORDER BY p.place"
        )
        path = str(self._folder / HELD_OUT).replace("'", "''")
        self._index.run(f"COPY ({query}) TO '{path}' (FORMAT parquet)")


def from_int32(stored: NDArray[np.int32], values: Values) -> Int64Array:
    """Restore codes that were stored as int32: class numbers, or the bits of a float32."""
    if not isinstance(values, TargetValues):
        return stored.astype(np.int64)
    return np.where(stored == -1, -1, stored.astype(np.int64) & 0xFFFFFFFF)


def _split_sizes(count: int, total: int, splits: Splits) -> tuple[int, int, int]:
    train, validation, test = splits.sizes(count)
    limited = min(validation, max(1, MAX_VALIDATION * count // total))
    return train + validation - limited, limited, test


def _parts(y: NDArray[Any], sizes: Sizes, done: dict[int, int], seed: int) -> Int64Array:
    """Assign rows to a part: 0 trains, 1 trains without label, 2 validates, 3 tests.

    `done` counts the rows of each class before these.
    """
    part = (y < 0).astype(np.int64)
    for label in np.unique(y[y >= 0]).tolist():
        mine = np.flatnonzero(y == label)
        order = torch.arange(done[label], done[label] + len(mine))
        done[label] += len(mine)
        shuffle = permute(order, sum(sizes[label]), seed, "split", label).numpy()
        _, validation, test = sizes[label]
        part[mine] = np.select([shuffle < test, shuffle < test + validation], [3, 2], 0)
    return part


def _places(part: Int64Array, begins: Int64Array) -> Int64Array:
    """Assign the next places of their parts to rows; advance `begins`."""
    place = np.zeros(len(part), dtype=np.int64)
    for which in range(len(begins)):
        mine = np.flatnonzero(part == which)
        place[mine] = begins[which] + np.arange(len(mine))
        begins[which] += len(mine)
    return place
