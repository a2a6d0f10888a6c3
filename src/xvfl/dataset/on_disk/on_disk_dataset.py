"""Datasets on disk.

rows.bin              (N, 1 + k) int32: label (a class, or the bits of a standardized number), and
                      number of observed features by party
table-PARTY.bin       (N, …) encoded rows; zero where the party does not hold the row
metadata.json         everything else; written last, so that a folder without it is incomplete
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from xvfl.data.encoder import encoder_from_dict
from xvfl.dataset.on_disk.block_file import BlockFile, read_rows
from xvfl.dataset.on_disk.disk_rows import DiskRows, DiskTable, block_rows, row_bytes
from xvfl.dataset.on_disk.placement import ROWS, SplitSizes
from xvfl.dataset.overlap import ALL_PARTIES, Overlap, add_full_rows
from xvfl.dataset.prepare import Metadata
from xvfl.dataset.splits import RowCounts, check_split, label_weights
from xvfl.primitives.rows import Rows
from xvfl.primitives.task import Regression, task_from_dict
from xvfl.system.files import atomic_write, flush_to_disk

METADATA = "metadata.json"


@dataclass(frozen=True)
class OnDiskDataset(Metadata):
    """Prepared rows on disk."""

    sizes: SplitSizes
    digest: str
    tables: dict[str, DiskTable]
    rows: BlockFile
    counts: NDArray[np.int64]
    """Labeled training rows of each class with any observed feature; numbers are one class."""
    full: dict[str, int]
    """Full rows, by party and of all parties."""

    def prior(self) -> list[float]:
        """Return the share of each class, or the mean number, of the labeled training rows."""
        if isinstance(self.task, Regression):
            return [self.task.mean]
        return [float(count) / float(self.counts.sum()) for count in self.counts]

    def row_counts(self) -> RowCounts:
        """Count the rows of each part."""
        labeled = self.sizes.train - self.sizes.unlabeled
        return RowCounts(labeled, self.sizes.unlabeled, self.sizes.validation, self.sizes.test)

    def training_rows(self, device: torch.device) -> DiskRows:
        """Return the rows to train on."""
        return self._part(0, self.sizes.train, device, self.sizes.unlabeled)

    def validation_rows(self, device: torch.device) -> Rows:
        """Load the rows to validate on; their number is bounded."""
        rows = self._part(self.sizes.train, self.sizes.validation, torch.device("cpu"))
        loaded = rows.take(torch.arange(self.sizes.validation))
        return loaded.take(loaded.seen.any(1).nonzero().flatten()).to(device)

    def overlap(self) -> Overlap:
        """Count the rows of each party: all, shared, labeled and full."""
        return add_full_rows(self.id_overlap, self.full)

    def fingerprint(self) -> str:
        """Return a hash of the rows, their labels and their split."""
        return self.digest

    def close(self) -> None:
        """Close the files."""
        for file in (self.rows, *(table.file for table in self.tables.values())):
            file.close()

    def _part(self, start: int, count: int, device: torch.device, unlabeled: int = 0) -> DiskRows:
        raw = tuple(layout.raw for layout in self.layouts.values())
        thresholds = tuple(self.full_threshold[name] for name in self.layouts)
        weights = label_weights(self.counts, self.sizes.unlabeled, self.class_weight)
        numbers = isinstance(self.task, Regression)
        return DiskRows(
            self.rows, start, count, unlabeled, raw, thresholds, weights, device, numbers
        )


def table_file(party: str) -> str:
    """Name the file of a party's encoded rows."""
    return f"table-{party}.bin"


def save_metadata(metadata: Metadata, sizes: SplitSizes, digest: str, folder: Path) -> None:
    """Write the metadata of a folder, after its files are on the disk."""
    encoders = {name: encoder.to_dict() for name, encoder in metadata.encoders.items()}
    data = {
        **vars(metadata),
        "task": metadata.task.to_dict(),
        "encoders": encoders,
        "sizes": asdict(sizes),
        "digest": digest,
    }
    for path in folder.glob("*.bin"):
        flush_to_disk(path)
    with atomic_write(folder / METADATA) as temporary:
        temporary.write_text(json.dumps(data), encoding="utf-8")


def open_on_disk(folder: Path) -> OnDiskDataset:
    """Open a dataset that `prepare_on_disk` wrote."""
    data = json.loads((folder / METADATA).read_text(encoding="utf-8"))
    sizes, digest = SplitSizes(**data.pop("sizes")), data.pop("digest")
    encoders = {name: encoder_from_dict(each) for name, each in data.pop("encoders").items()}
    metadata = Metadata(task_from_dict(data.pop("task")), encoders, **data)
    counts, full = _count_rows(folder / ROWS, metadata, sizes)
    block = block_rows(list(metadata.layouts.values()))
    tables = {
        name: DiskTable(layout, BlockFile(folder / table_file(name), row_bytes(layout), block))
        for name, layout in metadata.layouts.items()
    }
    rows = BlockFile(folder / ROWS, 4 * (1 + len(encoders)), block)
    return OnDiskDataset(
        **vars(metadata),
        sizes=sizes,
        digest=digest,
        tables=tables,
        rows=rows,
        counts=counts,
        full=full,
    )


def _count_rows(
    path: Path, metadata: Metadata, sizes: SplitSizes
) -> tuple[NDArray[np.int64], dict[str, int]]:
    """Count the training rows of each class, and the full rows of each party; check the split."""
    counts = np.zeros(metadata.task.n_outputs, dtype=np.int64)
    full = np.zeros(len(metadata.encoders) + 1, dtype=np.int64)
    raw = np.array([layout.raw for layout in metadata.layouts.values()], dtype=np.float32)
    thresholds = [metadata.full_threshold[name] for name in metadata.layouts]
    least = np.array(thresholds, dtype=np.float32) - np.float32(1e-6)
    unobserved = validation = start = 0
    for rows in read_rows(path, 1 + len(metadata.encoders)):
        observed = (rows[:, 1:] > 0).any(1)
        full_rows = (rows[:, 1:] / raw >= least) & (rows[:, 1:] > 0)
        full += [*full_rows.sum(0), full_rows.all(1).sum()]
        unobserved += int((~observed).sum())
        place = np.arange(start, start + len(rows))
        start += len(rows)
        trains, tests = place < sizes.train, place >= sizes.train + sizes.validation
        y = rows[observed & trains, 0]
        y = y[y != -1]
        classes = np.zeros_like(y) if isinstance(metadata.task, Regression) else y
        counts += np.bincount(classes, minlength=len(counts))
        validation += int((observed & ~trains & ~tests).sum())
    check_split(counts, validation, unobserved, metadata.task.min_classes)
    return counts, dict(zip([*metadata.encoders, ALL_PARTIES], full.tolist(), strict=True))
