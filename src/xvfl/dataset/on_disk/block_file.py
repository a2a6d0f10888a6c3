"""Rows of fixed size in a file: written anywhere, read in blocks, the latest blocks kept.

Nothing stays mapped, so that resident memory depends on the blocks kept, not on the file. Numpy
alone.
"""

import os
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Places = NDArray[np.int64]

KEPT = 512
"""Blocks kept in memory: those of two windows of a shuffled epoch."""
SCATTERED = 8192
"""Rows written at once: each may touch a page of its own."""


class BlockFile:
    """Reads rows of a file, block by block."""

    def __init__(self, path: Path, width: int, block: int, kept: int = KEPT) -> None:
        """Open a file of rows of `width` bytes, `block` rows in a block."""
        self.path, self.width, self.block = path, width, block
        self._file = path.open("rb", buffering=0)
        self.rows = path.stat().st_size // width
        self._held: Bytes = np.zeros((kept, block, width), dtype=np.uint8)
        self._slots: OrderedDict[int, int] = OrderedDict()

    def __len__(self) -> int:
        return self.rows

    def take(self, places: Places) -> Bytes:
        """Give the rows at the places. (n, width)"""
        found, which = np.unique(places // self.block, return_inverse=True)
        if len(found) <= len(self._held):
            return self._gather(found, which, places)
        out = np.empty((len(places), self.width), dtype=np.uint8)
        for start in range(0, len(found), len(self._held)):
            part = found[start : start + len(self._held)]
            mine = (which >= start) & (which < start + len(part))
            out[mine] = self._gather(part, which[mine] - start, places[mine])
        return out

    def _gather(self, blocks: Places, which: Places, places: Places) -> Bytes:
        slots = np.array([self._slot(block) for block in blocks.tolist()], dtype=np.int64)
        flat = self._held.reshape(-1, self.width)
        rows: Bytes = flat[slots[which] * self.block + places % self.block]
        return rows

    def _slot(self, block: int) -> int:
        slot = self._slots.get(block)
        if slot is not None:
            self._slots.move_to_end(block)
            return slot
        full = len(self._slots) == len(self._held)
        slot = self._slots.popitem(last=False)[1] if full else len(self._slots)
        self._file.seek(block * self.block * self.width)
        self._file.readinto(memoryview(self._held[slot]).cast("B"))
        self._slots[block] = slot
        return slot

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class RowWriter:
    """Writes rows of fixed size at any place of a file; what is never written reads as zero."""

    def __init__(self, path: Path, rows: int, dtype: Any, columns: int, keep: bool = False) -> None:
        """Make a file of `rows` rows of `columns` numbers, or `keep` the one that is there."""
        self.path, self.rows, self.dtype, self.columns = path, rows, np.dtype(dtype), columns
        if not keep:
            size = rows * columns * self.dtype.itemsize
            with path.open("wb") as file:
                # Taken from the disk at once: writing to a mapping of a full one would kill us.
                if size and hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, size)
                else:
                    file.truncate(size)

    def put(self, places: Places, rows: NDArray[Any], column: int = 0) -> None:
        """Write rows, or some of their columns from `column` on, at their places."""
        order = np.argsort(places, kind="stable")
        for start in range(0, len(order), SCATTERED):
            some = order[start : start + SCATTERED]
            low, high = int(places[some[0]]), int(places[some[-1]]) + 1
            # A mapping that ends here gives its pages back, however far apart the places lie.
            mapped = np.memmap(
                self.path,
                dtype=self.dtype,
                mode="r+",
                offset=low * self.columns * self.dtype.itemsize,
                shape=(high - low, self.columns),
            )
            mapped[places[some] - low, column : column + rows.shape[1]] = rows[some]
            del mapped


def read_rows(path: Path, columns: int, rows: int = SCATTERED) -> Iterator[NDArray[np.int32]]:
    """Give all rows of a file of whole numbers in pieces, in order."""
    with path.open("rb") as file:
        while data := file.read(4 * columns * rows):
            yield np.frombuffer(data, dtype=np.int32).reshape(-1, columns)
