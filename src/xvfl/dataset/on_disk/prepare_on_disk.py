"""From the parties' Parquet files to encoded rows on disk, piece by piece."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from xvfl.config import TableOptions
from xvfl.data.column_stats import STREAMING_LIMITS
from xvfl.data.encoder import TableEncoder
from xvfl.data.id_index import Whole, read_places
from xvfl.data.parquet import ParquetTable
from xvfl.dataset.on_disk.block_file import RowWriter, read_rows
from xvfl.dataset.on_disk.disk_rows import as_bytes, row_bytes
from xvfl.dataset.on_disk.label_pieces import find_classes
from xvfl.dataset.on_disk.on_disk_dataset import (
    About,
    OnDiskDataset,
    open_on_disk,
    save_about,
    table_of,
)
from xvfl.dataset.on_disk.parquet_tables import ParquetTables
from xvfl.dataset.on_disk.placement import ROWS, Parts, place_rows, places_of
from xvfl.dataset.prepare import Splits, check_names
from xvfl.errors import InputError, unknown


def prepare_on_disk(
    tables: ParquetTables,
    options: Mapping[str, TableOptions],
    splits: Splits,
    full_threshold: float | None,
    class_weight: str,
    folder: Path,
) -> OnDiskDataset:
    """Match the ids, split the rows, fit the encoders, encode into a folder."""
    check_names(tables.parties)
    for name in options:
        if name not in tables.parties:
            raise InputError(f"table options: {unknown('party', name, tables.parties)}")
    folder.mkdir(parents=True, exist_ok=True)
    classes = find_classes(tables)
    names, parts = place_rows(tables, classes, splits, folder)
    rows = RowWriter(folder / ROWS, parts.total, np.int32, 1 + len(tables.parties), keep=True)
    digest = blake2b(digest_size=16)
    for piece in read_rows(folder / ROWS, 1 + len(tables.parties)):
        digest.update(piece[:, 0].tobytes())
    encoders, shares = {}, {}
    for i, (name, table) in enumerate(tables.parties.items()):
        places = folder / places_of(name)
        encoders[name] = _fit(name, table, places, parts, options.get(name, TableOptions()))
        written = _write(table, encoders[name], places, parts, folder / table_of(name), rows, i)
        shares[name] = full_threshold or written.full_share()
        digest.update(written.digest)
        places.unlink()
    about = About(names, encoders, shares, parts, class_weight, digest.hexdigest())
    save_about(about, folder)
    return open_on_disk(folder)


def _fit(
    name: str, table: ParquetTable, places: Path, parts: Parts, options: TableOptions
) -> TableEncoder:
    def training() -> Iterator[pd.DataFrame]:
        for frame, place in zip(table.frames(), read_places(places), strict=True):
            mine = (place >= 0) & (place < parts.train)
            if mine.any():
                yield frame[mine]

    pieces = training()
    first = next(pieces, None)
    if first is None:
        raise InputError(f"party {name!r}: holds no training row; add rows or change the seed")

    def all_pieces() -> Iterator[pd.DataFrame]:
        yield first
        yield from pieces

    return TableEncoder.fit_pieces(all_pieces(), options, name, STREAMING_LIMITS)


@dataclass(frozen=True)
class Written:
    """What was met while a party's rows were written."""

    digest: bytes
    filled: NDArray[np.int64]
    """How many training rows have so many features observed, from 0 to all."""

    def full_share(self) -> float:
        """Choose `full_threshold`: the largest observed share that at least half of the rows reach."""
        raw = len(self.filled) - 1
        reached = np.cumsum(self.filled[::-1])
        middle = (int(self.filled.sum()) - 1) // 2
        observed = raw - int(np.searchsorted(reached, middle, side="right"))
        return float(torch.tensor(observed).float() / raw)


def _write(
    table: ParquetTable,
    encoder: TableEncoder,
    places: Path,
    parts: Parts,
    path: Path,
    rows: RowWriter,
    party: int,
) -> Written:
    """Encode a party's rows into its file, and tell the coordinator's how much each observed."""
    writer = RowWriter(path, parts.total, np.uint8, row_bytes(encoder.layout))
    digest = blake2b(digest_size=16)
    filled = np.zeros(encoder.layout.raw + 1, dtype=np.int64)
    for frame, place in zip(table.frames(), read_places(places), strict=True):
        held = place >= 0
        if not held.any():
            continue
        mine: Whole = place[held]
        encoded = encoder.encode(frame[held])
        data = as_bytes(encoded.values, encoded.codes, encoded.observed)
        counts = encoded.observed.sum(1)
        writer.put(mine, data)
        rows.put(mine, counts[:, None].astype(np.int32), column=1 + party)
        filled += np.bincount(counts[mine < parts.train], minlength=len(filled))
        digest.update(mine.tobytes())
        digest.update(data.tobytes())
    return Written(digest.digest(), filled)
