"""Prepared rows on disk, as training takes them: the counterpart of `xvfl.dataset.prepare.InMemoryDataset`.

rows.bin              (N, 1 + k) int32: class, and observed features by party
table-PARTY.bin       (N, …) encoded rows; zero where the party does not hold the row
about.json            everything else; its presence makes the folder whole
"""

import json
import os
import warnings
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from xvfl.data.encoder import TableEncoder
from xvfl.data.sources import Encoder
from xvfl.dataset.on_disk.block_file import BlockFile, read_rows
from xvfl.dataset.on_disk.disk_rows import DiskRows, DiskTable, block_rows, row_bytes
from xvfl.dataset.on_disk.placement import ROWS, Parts
from xvfl.errors import DataWarning, InputError
from xvfl.primitives.layout import Layout
from xvfl.primitives.rows import Rows

ABOUT = "about.json"


def table_of(party: str) -> str:
    """Name the file of a party's encoded rows."""
    return f"table-{party}.bin"


@dataclass(frozen=True)
class About:
    """What the files are of."""

    classes: list[Any]
    encoders: dict[str, TableEncoder]
    full_threshold: dict[str, float]
    parts: Parts
    class_weight: str
    digest: str
    """Of every encoded row, its class and its place."""


def save_about(about: About, folder: Path) -> None:
    """Write what the files of a folder are of, once they are whole and on the disk."""
    said = {
        "classes": about.classes,
        "encoders": {name: each.to_dict() for name, each in about.encoders.items()},
        "full_threshold": about.full_threshold,
        "parts": asdict(about.parts),
        "class_weight": about.class_weight,
        "digest": about.digest,
    }
    for path in folder.glob("*.bin"):
        with path.open("rb+") as file:
            os.fsync(file.fileno())
    temporary = folder / f".{ABOUT}.tmp"
    with temporary.open("w", encoding="utf-8") as file:
        file.write(json.dumps(said))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / ABOUT)


def open_on_disk(folder: Path) -> "OnDiskDataset":
    """Open what `prepare_on_disk` wrote."""
    said = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    encoders = {name: TableEncoder.from_dict(each) for name, each in said["encoders"].items()}
    about = About(
        said["classes"],
        encoders,
        said["full_threshold"],
        Parts(**said["parts"]),
        said["class_weight"],
        said["digest"],
    )
    layouts = [each.layout for each in encoders.values()]
    block = block_rows(layouts)
    counts = _class_counts(folder / ROWS, about)
    tables = {
        name: DiskTable(
            each.layout, BlockFile(folder / table_of(name), row_bytes(each.layout), block)
        )
        for name, each in encoders.items()
    }
    rows = BlockFile(folder / ROWS, 4 * (1 + len(encoders)), block)
    return OnDiskDataset(about, tables, rows, counts)


@dataclass(frozen=True)
class OnDiskDataset:
    """Everything training needs; the rows stay on disk."""

    about: About
    tables: dict[str, DiskTable]
    rows: BlockFile
    counts: NDArray[np.int64]
    """Training rows of each class that somebody saw something of."""

    @property
    def encoders(self) -> dict[str, Encoder]:
        """How each party encodes its table."""
        return dict(self.about.encoders)

    @property
    def layouts(self) -> dict[str, Layout]:
        """What each party's encoded features look like."""
        return {name: each.layout for name, each in self.about.encoders.items()}

    @property
    def full_threshold(self) -> dict[str, float]:
        """Observed share at which a row is full, by party."""
        return self.about.full_threshold

    @property
    def classes(self) -> list[Any]:
        """The labels, in the order of their numbers."""
        return self.about.classes

    def prior(self) -> list[float]:
        """Share of each class among the training rows."""
        return [float(count) / float(self.counts.sum()) for count in self.counts]

    def training(self, device: torch.device) -> DiskRows:
        """Give the rows to train on."""
        return self._part(0, self.about.parts.train, device)

    def validating(self, device: torch.device) -> Rows:
        """Give the rows to validate on; they are few enough to be held."""
        parts = self.about.parts
        rows = self._part(parts.train, parts.validation, torch.device("cpu"))
        taken = rows.take(torch.arange(parts.validation))
        return taken.take(taken.seen.any(1).nonzero().flatten()).to(device)

    def identity(self) -> str:
        """Tell these rows from any others."""
        return self.about.digest

    def close(self) -> None:
        """Close the files."""
        for file in (self.rows, *(table.file for table in self.tables.values())):
            file.close()

    def _part(self, start: int, count: int, device: torch.device) -> DiskRows:
        raw = tuple(layout.raw for layout in self.layouts.values())
        shares = tuple(self.full_threshold[name] for name in self.layouts)
        return DiskRows(self.rows, start, count, raw, shares, self._class_weight, device)

    @cached_property
    def _class_weight(self) -> tuple[float, ...]:
        if self.about.class_weight != "balanced":
            return (1.0,) * len(self.counts)
        each = self.counts.sum() / (self.counts.clip(min=1) * int((self.counts > 0).sum()))
        return tuple(float(weight) for weight in each)


def _class_counts(path: Path, about: About) -> NDArray[np.int64]:
    """Count the training rows by class; say which rows nobody saw, and refuse too few."""
    parts, classes = about.parts, len(about.classes)
    counts, lost, validation, start = np.zeros(classes, dtype=np.int64), 0, 0, 0
    for known in read_rows(path, 1 + len(about.encoders)):
        seen = (known[:, 1:] > 0).any(1)
        lost += int((~seen).sum())
        place = np.arange(start, start + len(known))
        start += len(known)
        counts += np.bincount(known[seen & (place < parts.train), 0], minlength=classes)
        after = (place >= parts.train) & (place < parts.train + parts.validation)
        validation += int((seen & after).sum())
    if lost:
        warnings.warn(
            f"{lost} rows hold no observed feature at any party and were left out of training",
            DataWarning,
            stacklevel=4,
        )
    if int((counts > 0).sum()) < 2:
        raise InputError("expected two classes or more among the training rows; add rows")
    if not validation:
        raise InputError(
            f"expected rows to validate on, but all {parts.train} are needed to train; add rows "
            "or raise `validation`"
        )
    return counts
