"""The data sets of the experiments: find, read, split over parties, cache.

Images need numpy alone (JPEG files also Pillow), tables pandas; modules are imported when used.
"""

import hashlib
import json
import warnings
from contextlib import suppress
from importlib import import_module
from lzma import LZMAError
from pathlib import Path

from xvfl.errors import DataWarning, InputError, RunError, XVFLError, unknown
from xvfl_lab.datasets.image_sets import SIDE
from xvfl_lab.datasets.source import DataSet, LocalFiles, Rows, cache_folder, data_folders
from xvfl_lab.files import DAMAGED
from xvfl_lab.task import Task, load_task, save_task

__all__ = ["DATASETS", "cache_path", "data_set", "find", "prepare"]

DATASETS = ("cifar10", "tinyimagenet5", "utkface", "bank", "avazu", "physionet2012", "mimic3")
"""Names of the data sets, and of their modules."""

UNREADABLE = (*DAMAGED, TypeError, AttributeError, LZMAError)
"""What the readers raise if a file is truncated or damaged."""


def data_set(name: str) -> DataSet:
    """Return the data set of this name."""
    if name not in DATASETS:
        raise InputError(unknown("data set", name, DATASETS))
    each: DataSet = import_module(f"xvfl_lab.datasets.{name}").DATA_SET
    return each


def find(name: str, data: Path | None = None) -> LocalFiles | None:
    """Search for a data set's files."""
    each = data_set(name)
    return next((files for f in data_folders(data) if (files := each.find(f))), None)


def prepare(name: str, parties: int = 2, data: Path | None = None) -> Task:
    """Return a data set, encoded and split over parties; the result is cached on disk.

    `data` is the folder with its files; by default XVFL_DATA and the folder of `xvfl-lab data get`.
    """
    each = data_set(name)
    if parties not in each.splits:
        valid = " or ".join(map(str, each.splits))
        raise InputError(f"data set {name!r}: expected {valid} parties, got {parties}")
    files = find(name, data)
    if files is None:
        raise each.not_found(data_folders(data))
    path = cache_path(each, files, parties)
    # A missing or damaged file is prepared again.
    with suppress(InputError):
        return load_task(path)
    raw = _read(files)
    _check_rows(len(raw.y), files)
    task = raw.split(parties)
    try:
        save_task(task, path)
    except RunError as error:
        warnings.warn(f"not cached: {error}", DataWarning, stacklevel=2)
    return task


def _check_rows(rows: int, files: LocalFiles) -> None:
    """Reject a data set without rows; warn if rows seem to be missing.

    Files with less than a hundredth of the rows are taken for a deliberate extract.
    """
    expected = files.format.rows
    if not rows:
        raise InputError(f"{files.paths[0]}: has no rows; get it again")
    if expected // 100 <= rows != expected > 0:
        warnings.warn(
            f"{files.paths[0]}: {rows:,} rows, expected {expected:,}; if it should be the "
            "whole data set, get it again",
            DataWarning,
            stacklevel=3,
        )


def _read(files: LocalFiles) -> Rows:
    try:
        return files.format.read(files.paths)
    except XVFLError:
        raise
    except UNREADABLE as error:
        raise InputError(
            f"{files.paths[0]}: cannot be read ({error}); it may be truncated: get it again"
        ) from error


def cache_path(data: DataSet, files: LocalFiles, parties: int) -> Path:
    """Return the cache file of a prepared data set: one for each source, split and version."""
    key = [data.name, parties, SIDE, data.version, files.identity()]
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
    return cache_folder() / "prepared" / f"{data.name}-{parties}-{digest}.npz"
