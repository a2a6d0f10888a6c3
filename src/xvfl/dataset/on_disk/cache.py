"""The folder of encoded rows beside a run: made once, found again when the run goes on."""

import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from xvfl.config import TableOptions
from xvfl.dataset.on_disk.on_disk_dataset import OnDiskDataset, open_on_disk
from xvfl.dataset.on_disk.parquet_tables import ParquetTables
from xvfl.dataset.on_disk.placement import HELD_OUT
from xvfl.dataset.on_disk.prepare_on_disk import prepare_on_disk
from xvfl.dataset.prepare import Splits
from xvfl.errors import InputError

CACHE = "cache"
MADE_FROM = "made_from.json"


def cached(
    tables: ParquetTables,
    options: Mapping[str, TableOptions],
    splits: Splits,
    full_threshold: float | None,
    class_weight: str,
    run: Path,
) -> OnDiskDataset:
    """Prepare tables into a run's folder, or find them there as they were prepared before."""
    folder, new = run / CACHE, not run.exists()
    wanted = json.dumps(_made_from(tables, options, splits, full_threshold, class_weight))
    made_from = folder / MADE_FROM
    if folder.exists() and not _ours(folder) and any(folder.iterdir()):
        raise InputError(
            f"{folder}: would hold encoded rows, but holds something else; move it away, or choose "
            "another --out"
        )
    # What a power cut left unreadable is made again.
    with suppress(OSError, ValueError, KeyError):
        if made_from.read_text(encoding="utf-8") == wanted:
            return open_on_disk(folder)
    try:
        clear(run)
        folder.mkdir(parents=True, exist_ok=True)
        made_from.write_text(wanted, encoding="utf-8")
        return prepare_on_disk(tables, options, splits, full_threshold, class_weight, folder)
    except BaseException as error:
        clear(run)
        if new:
            shutil.rmtree(run, ignore_errors=True)
        if isinstance(error, OSError):
            raise InputError(
                f"{folder}: the encoded rows could not be written ({error.strerror or error}); "
                "make space there, or choose another --out"
            ) from error
        raise


def keep_held_out(run: Path) -> str:
    """Move the ids held out into the run's folder; give the file's name.

    A run whose end was cut short after this finds them moved already.
    """
    if (run / CACHE / HELD_OUT).exists():
        (run / CACHE / HELD_OUT).replace(run / HELD_OUT)
    return HELD_OUT


def clear(run: Path) -> None:
    """Remove the encoded rows of a run that is finished; a folder of others stays."""
    folder = run / CACHE
    if not _ours(folder):
        return
    # What tells whose folder it is goes last.
    with suppress(OSError):
        for path in sorted(folder.iterdir(), key=lambda each: each.name == MADE_FROM):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        folder.rmdir()


def _ours(folder: Path) -> bool:
    return (folder / MADE_FROM).is_file()


def _made_from(tables: ParquetTables, options: Mapping[str, TableOptions], *rest: Any) -> Any:
    splits, *more = rest
    chosen = {name: asdict(each) for name, each in options.items()}
    return [tables.stamps(), chosen, asdict(splits), *more]
