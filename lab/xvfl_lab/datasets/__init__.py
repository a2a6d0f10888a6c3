"""The data sets of the paper's experiments, and one more: found, read, split, cached.

Images need numpy alone (JPEG files Pillow, too), tables pandas: only what is asked for is imported.
"""

import hashlib
import json
import warnings
import zlib
from contextlib import suppress
from importlib import import_module
from lzma import LZMAError
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

from xvfl.errors import DataWarning, InputError, XVFLError, unknown
from xvfl_lab.datasets.image_sets import SIDE
from xvfl_lab.datasets.source import DataSet, Found, cache_folder, data_folders
from xvfl_lab.task import Task, load_task, save_task

__all__ = ["DATASETS", "cached", "data_set", "find", "prepare"]

DATASETS: dict[str, str] = {
    "cifar10": "xvfl_lab.datasets.cifar10",
    "tinyimagenet5": "xvfl_lab.datasets.tinyimagenet5",
    "utkface": "xvfl_lab.datasets.utkface",
    "bank": "xvfl_lab.datasets.bank",
    "avazu": "xvfl_lab.datasets.avazu",
    "physionet2012": "xvfl_lab.datasets.physionet2012",
    "mimic3": "xvfl_lab.datasets.mimic3",
}

UNREADABLE = (
    OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, BadZipFile, LZMAError,
    zlib.error,
)  # fmt: skip
"""What readers raise, each in its own way, where a file is cut short or damaged."""


def data_set(name: str) -> DataSet[Any]:
    """Give the data set of that name."""
    if name not in DATASETS:
        raise InputError(unknown("data set", name, DATASETS))
    found: DataSet[Any] = import_module(DATASETS[name]).DATA_SET
    return found


def find(name: str, data: Path | None = None) -> Found[Any] | None:
    """Look for a data set's files."""
    each = data_set(name)
    return next((found for f in data_folders(data) if (found := each.find(f))), None)


def prepare(name: str, parties: int = 2, data: Path | None = None) -> Task:
    """Give a data set, encoded and split over parties; from the cache, where it was prepared once.

    `data` is the folder with its files; by default XVFL_DATA and where `xvfl data get` put them.
    """
    each = data_set(name)
    if parties not in each.splits:
        valid = " or ".join(map(str, each.splits))
        raise InputError(f"data set {name!r}: expected {valid} parties, got {parties}")
    found = find(name, data)
    if found is None:
        raise each.absent(data_folders(data))
    path = cached(each, found, parties)
    # A damaged one is made again.
    with suppress(InputError):
        return load_task(path)
    raw = _read(found)
    _count(len(raw.y), found)
    task = each.build(raw, parties)
    try:
        save_task(task, path)
    except InputError as error:
        warnings.warn(f"not kept for the next time: {error}", DataWarning, stacklevel=2)
    return task


def _count(rows: int, found: Found[Any]) -> None:
    """Refuse a data set without rows; warn where some seem to be lost.

    What has less than a hundredth of them is taken for an extract, made on purpose.
    """
    if not rows:
        raise InputError(f"{found.files[0]}: no row in it; get it again")
    if found.form.rows // 100 <= rows != found.form.rows > 0:
        warnings.warn(
            f"{found.files[0]}: {rows:,} rows, expected {found.form.rows:,}; if it should be the "
            "whole data set, get it again",
            DataWarning,
            stacklevel=3,
        )


def _read(found: Found[Any]) -> Any:
    try:
        return found.form.read(found.files)
    except XVFLError:
        raise
    except UNREADABLE as error:
        raise InputError(
            f"{found.files[0]}: cannot be read ({error}); it may be cut short: get it again"
        ) from error


def cached(data: DataSet[Any], found: Found[Any], parties: int) -> Path:
    """Say where a preparation is kept: one file for each source, split and version."""
    key = [data.name, parties, SIDE, data.version, found.identity()]
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
    return cache_folder() / "prepared" / f"{data.name}-{parties}-{digest}.npz"
