"""Files of fixed-size rows: written at any place, read in blocks, the latest blocks cached.

Nothing stays mapped, so resident memory depends on the cache, not on the file. Numpy only.
"""

import os
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Int64Array = NDArray[np.int64]

CACHED_BLOCKS = 512
"""Blocks in memory: those of two windows of a shuffled epoch."""
WRITE_ROWS = 8192
"""Rows written at once: each may touch a page of its own."""


class BlockFile:
    """Reads rows of a file, block by block."""

    def __init__(self, path: Path, width: int, block: int, cached: int = CACHED_BLOCKS) -> None:
        """Open a file with rows of `width` bytes and blocks of `block` rows."""
        self.path, self.width, self.block = path, width, block
        self._file = path.open("rb", buffering=0)
        self.rows = path.stat().st_size // width
        self._cache: Bytes = np.zeros((cached, block, width), dtype=np.uint8)
        self._slots: OrderedDict[int, int] = OrderedDict()

    def __len__(self) -> int:
        return self.rows

    def take(self, places: Int64Array) -> Bytes:
        """Read the rows at the places. (n, width)"""
        blocks, which = np.unique(places // self.block, return_inverse=True)
        if len(blocks) <= len(self._cache):
            return self._gather(blocks, which, places)
        out = np.empty((len(places), self.width), dtype=np.uint8)
        for start in range(0, len(blocks), len(self._cache)):
            part = blocks[start : start + len(self._cache)]
            mine = (which >= start) & (which < start + len(part))
            out[mine] = self._gather(part, which[mine] - start, places[mine])
        return out

    def _gather(self, blocks: Int64Array, which: Int64Array, places: Int64Array) -> Bytes:
        slots = np.array([self._slot(block) for block in blocks.tolist()], dtype=np.int64)
        flat = self._cache.reshape(-1, self.width)
        rows: Bytes = flat[slots[which] * self.block + places % self.block]
        return rows

    def _slot(self, block: int) -> int:
        slot = self._slots.get(block)
        if slot is not None:
            self._slots.move_to_end(block)
            return slot
        full = len(self._slots) == len(self._cache)
        slot = self._slots.popitem(last=False)[1] if full else len(self._slots)
        self._file.seek(block * self.block * self.width)
        self._file.readinto(memoryview(self._cache[slot]).cast("B"))
        self._slots[block] = slot
        return slot

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class RowWriter:
    """Writes fixed-size rows at any place of a file; rows that are never written are zero."""

    def __init__(self, path: Path, rows: int, dtype: Any, columns: int, keep: bool = False) -> None:
        """Create a file of `rows` rows of `columns` numbers, or `keep` the existing one."""
        self.path, self.rows, self.dtype, self.columns = path, rows, np.dtype(dtype), columns
        if not keep:
            size = rows * columns * self.dtype.itemsize
            with path.open("wb") as file:
                # Allocate the space now: writing to a mapping on a full disk kills the process.
                if size and hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, size)
                else:
                    file.truncate(size)

    def put(self, places: Int64Array, rows: NDArray[Any], column: int = 0) -> None:
        """Write rows, or some of their columns from `column` on, at their places."""
        order = np.argsort(places, kind="stable")
        for start in range(0, len(order), WRITE_ROWS):
            part = order[start : start + WRITE_ROWS]
            low, high = int(places[part[0]]), int(places[part[-1]]) + 1
            # A mapping for each part releases its pages, however far apart the places are.
            offset, shape = low * self.columns * self.dtype.itemsize, (high - low, self.columns)
            mapped = np.memmap(self.path, self.dtype, "r+", offset, shape)
            mapped[places[part] - low, column : column + rows.shape[1]] = rows[part]
            del mapped


def read_rows(path: Path, columns: int, rows: int = WRITE_ROWS) -> Iterator[NDArray[np.int32]]:
    """Read all rows of a file of int32 numbers in chunks, in order."""
    with path.open("rb") as file:
        while data := file.read(4 * columns * rows):
            yield np.frombuffer(data, dtype=np.int32).reshape(-1, columns)
