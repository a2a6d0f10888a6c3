"""The folder of encoded rows in a run folder: written once, reused when the run is resumed."""

import json
import shutil
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from xvfl.dataset.on_disk.on_disk_dataset import OnDiskDataset, open_on_disk
from xvfl.dataset.on_disk.parquet_tables import ParquetTables
from xvfl.dataset.on_disk.placement import HELD_OUT
from xvfl.dataset.on_disk.prepare_on_disk import prepare_on_disk
from xvfl.dataset.prepare import PreparationPlan
from xvfl.errors import InputError

CACHE = "cache"
CACHE_KEY = "cache_key.json"


def prepare_cached(tables: ParquetTables, plan: PreparationPlan, run: Path) -> OnDiskDataset:
    """Prepare tables into a run folder, or open the dataset that was prepared there before."""
    folder, new = run / CACHE, not run.exists()
    key, key_file = json.dumps([tables.versions(), asdict(plan)]), folder / CACHE_KEY
    if folder.exists() and not _is_cache(folder) and any(folder.iterdir()):
        raise InputError(
            f"{folder}: expected a folder for encoded rows, but it holds other files; move it "
            "away, or choose another --out"
        )
    # Prepare again what a crash left unreadable.
    with suppress(OSError, ValueError, KeyError, TypeError):
        if key_file.read_text(encoding="utf-8") == key:
            return open_on_disk(folder)
    try:
        remove_cache(run)
        folder.mkdir(parents=True, exist_ok=True)
        key_file.write_text(key, encoding="utf-8")
        return prepare_on_disk(tables, plan, folder)
    except BaseException as error:
        remove_cache(run)
        if new:
            shutil.rmtree(run, ignore_errors=True)
        if isinstance(error, OSError):
            raise InputError(
                f"{folder}: the encoded rows could not be written ({error.strerror or error}); "
                "free disk space there, or choose another --out"
            ) from error
        raise


def save_held_out(run: Path) -> str:
    """Move the held-out ids from the cache to the run folder; return the file's name.

    A resumed run may have moved them before.
    """
    if (run / CACHE / HELD_OUT).exists():
        (run / CACHE / HELD_OUT).replace(run / HELD_OUT)
    return HELD_OUT


def remove_cache(run: Path) -> None:
    """Remove the encoded rows of a run; a folder that is not a cache stays."""
    folder = run / CACHE
    if not _is_cache(folder):
        return
    # The file that marks the folder as a cache goes last.
    with suppress(OSError):
        for path in sorted(folder.iterdir(), key=lambda each: each.name == CACHE_KEY):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        folder.rmdir()


def _is_cache(folder: Path) -> bool:
    return (folder / CACHE_KEY).is_file()
