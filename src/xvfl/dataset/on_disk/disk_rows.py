"""Rows on disk: a party's table, the coordinator's rows, and their order in an epoch.

Shapes: N rows of the federation, B rows of a batch, k parties. Torch and numpy only.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from xvfl.dataset.on_disk.block_file import BlockFile, Bytes
from xvfl.primitives.layout import Layout
from xvfl.primitives.mixed_order import epoch_size, labeled_share, mix
from xvfl.primitives.random import named_generator
from xvfl.primitives.rows import PartyTable, Rows
from xvfl.primitives.seeding import derive_seed

BLOCK_BYTES = 1 << 16
"""Largest size of a block of the widest party."""
MAX_BLOCK_ROWS = 256
"""Largest number of rows in a block."""
WINDOW = 256
"""Blocks whose rows are shuffled together."""


def block_rows(layouts: Sequence[Layout]) -> int:
    """Choose the number of rows in a block: a power of two, the same for all parties."""
    fitting = BLOCK_BYTES // max(row_bytes(layout) for layout in layouts)
    return min(MAX_BLOCK_ROWS, 1 << max(3, fitting.bit_length() - 1))


def row_bytes(layout: Layout) -> int:
    """Return the size of an encoded row: numbers, bucket codes, observed flags."""
    return 4 * layout.dense + 4 * len(layout.hashed) + layout.raw + -layout.raw % 4


def to_bytes(values: np.ndarray, codes: np.ndarray, observed: np.ndarray) -> Bytes:
    """Pack encoded rows as bytes. (n, row_bytes)"""
    parts = [
        np.ascontiguousarray(values, dtype=np.float32).view(np.uint8),
        np.ascontiguousarray(codes, dtype=np.int32).view(np.uint8),
        observed.astype(np.uint8),
        np.zeros((len(values), -observed.shape[1] % 4), dtype=np.uint8),
    ]
    return np.concatenate([part for part in parts if part.shape[1]], axis=1)


@dataclass(frozen=True)
class DiskTable:
    """One party's encoded rows in a file; the handle of a row is its place in the federation."""

    layout: Layout
    file: BlockFile
    device: torch.device = torch.device("cpu")

    def __len__(self) -> int:
        return len(self.file)

    def take(self, handles: Tensor) -> PartyTable:
        """Read the rows at the handles; handle −1 is a row that the party does not hold."""
        at = handles.cpu().numpy()
        raw = self.file.take(np.maximum(at, 0))
        dense, hashed = 4 * self.layout.dense, 4 * len(self.layout.hashed)
        values = np.ascontiguousarray(raw[:, :dense]).view(np.float32)
        codes = np.ascontiguousarray(raw[:, dense : dense + hashed]).view(np.int32)
        flags = raw[:, dense + hashed : dense + hashed + self.layout.raw]
        observed = (flags != 0) & (at >= 0)[:, None]
        parts = (values, codes.reshape(len(at), -1).astype(np.int64), observed)
        return PartyTable(
            self.layout, *(_to_device(self.device, torch.from_numpy(x)) for x in parts)
        )

    def to(self, device: torch.device) -> "DiskTable":
        """Move rows to a device as they are read."""
        return replace(self, device=device)


@dataclass(frozen=True)
class DiskRows:
    """The coordinator's view of some rows, in a file: class, and observed features by party."""

    file: BlockFile
    """(N, 1 + k) int32: class number, or the bits of a number as float32, −1 for unlabeled rows;
    then number of observed features, −1 where not held."""
    start: int
    count: int
    """The rows from `start` to `start + count`."""
    unlabeled: int
    """Of these, the last ones."""
    raw: tuple[int, ...]
    """Raw features of each party."""
    full_threshold: tuple[float, ...]
    """Observed share from which a row is full, by party."""
    label_weight: tuple[float, ...]
    """Weight of a row of each class in the loss; the last is that of unlabeled rows, class −1."""
    device: torch.device = torch.device("cpu")
    numbers: bool = False
    """Whether labels are numbers; rows with numbers have the weight of class 0."""

    def __len__(self) -> int:
        return self.count

    @property
    def epoch_size(self) -> int:
        """Number of rows of an epoch."""
        return epoch_size(self.count - self.unlabeled, self.unlabeled)

    @property
    def unlabeled_share(self) -> float:
        """Share of the rows that have no label."""
        return self.unlabeled / max(self.count, 1)

    def take(self, index: Tensor, step: int | Tensor = 0) -> Rows:
        """Read the rows at the index as the batch of a step; their handles stay on the CPU."""
        at = index.cpu() + self.start
        stored = torch.from_numpy(self.file.take(at.numpy()).view(np.int32))
        labels, observed = stored[:, 0].contiguous(), stored[:, 1:]
        # The bits of −1 are those of a NaN.
        y = labels.view(torch.float32) if self.numbers else labels.long()
        seen = observed > 0
        share = observed.float() / torch.tensor(self.raw, dtype=torch.float32)
        classes = -(labels == -1).long() if self.numbers else y
        weight = torch.tensor(self.label_weight)[classes] * seen.any(1)
        full = (share >= torch.tensor(self.full_threshold) - 1e-6) & seen
        handles = torch.where(observed >= 0, at.unsqueeze(1), -1)
        full, seen, y, weight = (_to_device(self.device, x) for x in (full, seen, y, weight))
        return Rows(handles, full, seen, y, weight, step)

    def order(self, seeds: Sequence[int], epoch: int) -> Callable[[int, int], Tensor]:
        """Shuffle an epoch: the blocks of the file, then the rows of each window of blocks.

        Each batch has the same share of labeled rows (`xvfl.primitives.mixed_order`).
        """
        seed, block = seeds[0], self.file.block
        if not self.unlabeled:
            return WindowOrder(self.count, block, seed, epoch).rows
        count = self.count - self.unlabeled
        half = WINDOW // 2
        labeled = WindowOrder(count, block, seed, epoch, half)
        other_seed = derive_seed(seed, "unlabeled")
        unlabeled = WindowOrder(self.unlabeled, block, other_seed, epoch, half, count)
        return mix(labeled.rows, unlabeled.rows, labeled_share(count, self.unlabeled))


def _to_device(device: torch.device, x: Tensor) -> Tensor:
    """Move rows to a device asynchronously."""
    return x if device.type == "cpu" else x.pin_memory().to(device, non_blocking=True)


class WindowOrder:
    """The order of one epoch, computed window by window."""

    def __init__(
        self,
        count: int,
        block: int,
        seed: int,
        epoch: int,
        window: int = WINDOW,
        first: int = 0,
    ) -> None:
        """Order `count` rows from `first` on, with `window` blocks at a time."""
        self.count, self.block, self.seed, self.epoch = count, block, seed, epoch
        self.first = first
        blocks = -(-count // block)
        rng = named_generator("cpu", seed, "order", epoch)
        self.windows = torch.split(torch.randperm(blocks, generator=rng), window)
        short = blocks * block - count
        sizes = [
            len(window) * block - (short if bool((window == blocks - 1).any()) else 0)
            for window in self.windows
        ]
        self.ends = np.cumsum(sizes)
        self._current: tuple[int, Tensor] = (-1, torch.empty(0))

    def rows(self, start: int, stop: int) -> Tensor:
        """Return the rows from `start` to `stop` of the order."""
        parts = []
        while start < stop:
            at = int(np.searchsorted(self.ends, start, side="right"))
            begin = int(self.ends[at - 1]) if at else 0
            end = min(stop, int(self.ends[at]))
            parts.append(self._window(at)[start - begin : end - begin])
            start = end
        return torch.cat(parts) + self.first if parts else torch.empty(0, dtype=torch.long)

    def _window(self, at: int) -> Tensor:
        if self._current[0] != at:
            rows = (self.windows[at].unsqueeze(1) * self.block + torch.arange(self.block)).flatten()
            rows = rows[rows < self.count]
            rng = named_generator("cpu", self.seed, "window", self.epoch, at)
            self._current = (at, rows[torch.randperm(len(rows), generator=rng)])
        return self._current[1]
