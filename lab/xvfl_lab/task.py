"""A prepared data set: one file of arrays, read with numpy alone.

Shapes: N rows; dense, hashed and raw as in a party's layout.
"""

import json
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xvfl.errors import InputError
from xvfl.primitives.layout import Layout
from xvfl_lab.files import DAMAGED, write_file

FORMAT = 1
BY_PARTY = ("values", "codes", "observed")


@dataclass(frozen=True)
class Task:
    """A data set split over parties; only naturally missing features are unobserved."""

    name: str
    layouts: dict[str, Layout]
    values: dict[str, NDArray[Any]]
    """By party: (N, dense) float32 in [0, 1], or (N, channels, height, width) uint8 images."""
    y: NDArray[np.int64]
    """(N,) class indices."""
    observed: dict[str, NDArray[np.bool_]] = field(default_factory=dict)
    """By party: (N, raw) which raw features are observed; a party left out observes all."""
    codes: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    """By party: (N, hashed) hash buckets; a party left out has no hashed feature."""
    test: NDArray[np.bool_] | None = None
    """(N,) the fixed test rows; None if each seed samples its own, a fraction `test_share`."""
    test_share: float = 0.2

    @property
    def classes(self) -> int:
        """Number of classes."""
        return int(self.y.max()) + 1

    def __len__(self) -> int:
        return len(self.y)

    def digest(self) -> str:
        """Hash labels, test rows, columns and missing features: the same on every machine.

        Values, bins and differences are left out, since their last bits depend on the machine.
        """
        about = blake2b(digest_size=8)
        layouts = {
            name: replace(each, bins=(), differences=()).to_dict()
            for name, each in self.layouts.items()
        }
        about.update(json.dumps([self.name, layouts], sort_keys=True).encode())
        about.update(self.y.astype("<i8").tobytes())
        for each in (self.test, *(self.observed.get(party) for party in self.layouts)):
            about.update(b"none" if each is None else np.packbits(each).tobytes())
        return about.hexdigest()

    def take(self, rows: NDArray[np.int64]) -> "Task":
        """Select rows."""
        return replace(
            self,
            values={party: each[rows] for party, each in self.values.items()},
            y=self.y[rows],
            observed={party: each[rows] for party, each in self.observed.items()},
            codes={party: each[rows] for party, each in self.codes.items()},
            test=None if self.test is None else self.test[rows],
        )

    def observed_at(self, party: str) -> NDArray[np.bool_]:
        """Return which raw features a party observes. (N, raw)"""
        if party in self.observed:
            return self.observed[party]
        return np.ones((len(self), self.layouts[party].raw), dtype=bool)

    def buckets(self, party: str) -> NDArray[np.int64]:
        """Return a party's hash buckets, (N, 0) if it has no hashed feature."""
        return self.codes.get(party, np.zeros((len(self), 0), dtype=np.int64))

    def raw_values(self, party: str) -> NDArray[np.float32]:
        """Return one number for each raw feature, NaN where it is missing. (N, raw)

        Numbers and pixels: the mean of their columns or channels. Categories: their index.
        """
        layout, values = self.layouts[party], self.values[party]
        if layout.image is not None:
            bright: NDArray[np.float32] = values.mean(1, dtype=np.float32)
            return bright.reshape(len(self), -1)
        columns, at = [], 0
        for feature in layout.features:
            if feature.kind == "hashed":
                continue
            part = values[:, at : at + feature.width]
            columns.append(part.argmax(1) if feature.kind == "category" else part.mean(1))
            at += feature.width
        codes = self.buckets(party)
        raw = np.stack([*columns, *codes.T], axis=1).astype(np.float32)
        return np.where(self.observed_at(party), raw, np.float32(np.nan))


def save_task(task: Task, path: Path) -> None:
    """Write a task to one `.npz` file, atomically."""
    about = {
        "format": FORMAT,
        "name": task.name,
        "layouts": {party: layout.to_dict() for party, layout in task.layouts.items()},
        "test_share": task.test_share,
    }
    arrays: dict[str, NDArray[Any]] = {"about": np.array(json.dumps(about)), "y": task.y}
    if task.test is not None:
        arrays["test"] = task.test
    for part in BY_PARTY:
        arrays |= {f"{part}/{party}": array for party, array in getattr(task, part).items()}
    with write_file(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


def load_task(path: Path) -> Task:
    """Read a task written by `save_task`."""
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        about = json.loads(str(arrays["about"]))
    except FileNotFoundError as error:
        raise InputError(
            f"{path}: no such file; `xvfl-lab data prepare NAME --out FILE` writes one"
        ) from error
    except DAMAGED as error:
        raise InputError(f"{path}: not a prepared data set ({error}); prepare it again") from error
    if about.get("format") != FORMAT:
        raise InputError(
            f"{path}: expected format {FORMAT}, got {about.get('format')!r}; prepare it again"
        )
    layouts = {party: Layout.from_dict(each) for party, each in about["layouts"].items()}
    parts = {
        part: {party: arrays[f"{part}/{party}"] for party in layouts if f"{part}/{party}" in arrays}
        for part in BY_PARTY
    }
    name, share = about["name"], about["test_share"]
    return Task(name, layouts, y=arrays["y"], test=arrays.get("test"), test_share=share, **parts)
