"""Prepare the parties' Parquet files into files of encoded rows."""

from contextlib import closing
from hashlib import blake2b
from pathlib import Path
from typing import cast

import numpy as np

from xvfl.data.encoded import Encoded
from xvfl.data.id_index import Int64Array
from xvfl.data.targets import TargetValues
from xvfl.data.value_stats import STREAMING_LIMITS
from xvfl.dataset.on_disk.block_file import WRITE_ROWS, RowWriter, read_rows
from xvfl.dataset.on_disk.disk_rows import row_bytes, to_bytes
from xvfl.dataset.on_disk.on_disk_dataset import (
    OnDiskDataset,
    open_on_disk,
    save_metadata,
    table_file,
)
from xvfl.dataset.on_disk.parquet_tables import ParquetTables
from xvfl.dataset.on_disk.placement import ROWS, DiskPlacement
from xvfl.dataset.prepare import Metadata, PreparationPlan, StoreRows, prepare
from xvfl.primitives.layout import Layout
from xvfl.primitives.task import Regression


def prepare_on_disk(tables: ParquetTables, plan: PreparationPlan, folder: Path) -> OnDiskDataset:
    """Prepare tables and labels into a folder, in memory that does not grow with them."""
    folder.mkdir(parents=True, exist_ok=True)
    with closing(_DiskBackend(tables, folder)) as backend:
        labels = tables.labels
        return prepare(backend, tables.parties, labels, labels.where, plan, STREAMING_LIMITS)


class _DiskStorage:
    """Writes a party's encoded rows, and their observed features to the coordinator's file."""

    def __init__(self, table: RowWriter, rows: RowWriter, column: int) -> None:
        self._table, self._rows, self._column = table, rows, column
        self.digest = blake2b(digest_size=16)

    def put(self, places: Int64Array, encoded: Encoded) -> None:
        data = to_bytes(encoded.values, encoded.codes, encoded.observed)
        observed = encoded.observed.sum(1)[:, None].astype(np.int32)
        self._table.put(places, data)
        self._rows.put(places, observed, self._column)
        self.digest.update(places.tobytes())
        self.digest.update(data.tobytes())


class _DiskBackend(DiskPlacement):
    """Matches ids in a database and stores rows in files."""

    def __init__(self, tables: ParquetTables, folder: Path) -> None:
        super().__init__(tables, folder)
        self._columns = 1 + len(tables.parties)
        self._storages: list[_DiskStorage] = []

    def storage(self, party: str, layout: Layout) -> StoreRows:
        total, column = self.sizes.total, 1 + len(self._storages)
        table = RowWriter(self._folder / table_file(party), total, np.uint8, row_bytes(layout))
        rows = RowWriter(self._folder / ROWS, total, np.int32, self._columns, keep=True)
        self._storages.append(_DiskStorage(table, rows, column))
        return self._storages[-1].put

    def dataset(self, metadata: Metadata) -> OnDiskDataset:
        if isinstance(metadata.task, Regression):
            self._standardize(metadata.task)
        digest = blake2b(digest_size=16)
        for rows in read_rows(self._folder / ROWS, self._columns):
            digest.update(rows[:, 0].tobytes())
        for storage in self._storages:
            digest.update(storage.digest.digest())
        self.remove_files()
        save_metadata(metadata, self.sizes, digest.hexdigest(), self._folder)
        return open_on_disk(self._folder)

    def _standardize(self, task: Regression) -> None:
        """Replace the codes of numbers by the bits of standardized numbers."""
        writer = RowWriter(self._folder / ROWS, self.sizes.total, np.int32, self._columns, True)
        for start in range(0, self.sizes.total, WRITE_ROWS):
            places = np.arange(start, min(start + WRITE_ROWS, self.sizes.total))
            numbers = cast(TargetValues, self._values).numbers(self.label_codes(places))
            bits = task.standardize(numbers).numpy().view(np.int32)
            writer.put(places, np.where(np.isnan(numbers), -1, bits)[:, None])
