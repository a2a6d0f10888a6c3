"""The folder of encoded rows beside a run: made once, found again when the run goes on."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from xvfl.config import TableOptions
from xvfl.errors import InputError
from xvfl.prepare import Splits
from xvfl.streamed.places import HELD_OUT
from xvfl.streamed.prepare import prepare_streamed
from xvfl.streamed.prepared import ABOUT, Streamed, open_prepared
from xvfl.streamed.tables import StreamedTables

CACHE = "cache"
MADE_FROM = "made_from.json"


def cached(
    tables: StreamedTables,
    options: Mapping[str, TableOptions],
    splits: Splits,
    full_at: float | None,
    class_weight: str,
    run: Path,
) -> Streamed:
    """Prepare tables into a run's folder, or find them there as they were prepared before."""
    folder, new = run / CACHE, not run.exists()
    wanted = json.dumps(_made_from(tables, options, splits, full_at, class_weight))
    made_from = folder / MADE_FROM
    if (folder / ABOUT).is_file() and made_from.read_text(encoding="utf-8") == wanted:
        return open_prepared(folder)
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        made_from.write_text(wanted, encoding="utf-8")
        return prepare_streamed(tables, options, splits, full_at, class_weight, folder)
    except BaseException as error:
        shutil.rmtree(run if new else folder, ignore_errors=True)
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
    """Remove the encoded rows of a run that is finished."""
    shutil.rmtree(run / CACHE, ignore_errors=True)


def _made_from(tables: StreamedTables, options: Mapping[str, TableOptions], *rest: Any) -> Any:
    splits, *more = rest
    chosen = {name: asdict(each) for name, each in options.items()}
    return [tables.stamps(), chosen, asdict(splits), *more]
