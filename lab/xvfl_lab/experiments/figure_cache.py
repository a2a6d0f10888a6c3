"""Cache of figures: NAME.json and NAME.npz, computed again when the configuration changes.

Torch and numpy alone: a machine without matplotlib computes, another one draws.
"""

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from xvfl.errors import RunError
from xvfl_lab.experiments.dispatch import hardware
from xvfl_lab.experiments.run_store import key_of
from xvfl_lab.files import DAMAGED, write_file, write_text

PARTS = "parts"
"""Folder of the parts of unfinished figures; it may be deleted once they are complete."""
Progress = Callable[[str], None]
"""Called with a line of text when a new part begins."""


@dataclass(frozen=True)
class FigureData:
    """The content of a figure."""

    figures: dict[str, Any]
    """Numbers and texts, readable as JSON."""
    arrays: dict[str, NDArray[Any]]
    """Arrays that the plot needs."""
    seconds: float | None = None
    """Of the computation, if a part of it was stored before; by default, measured."""
    hardware: str = ""
    """Of the computation, if it was stored before; by default, this machine."""


def cached_figure(
    out: Path,
    name: str,
    config: Mapping[str, Any],
    device: torch.device,
    compute: Callable[[], FigureData],
) -> dict[str, Any]:
    """Return the record of a figure; compute it if none with this configuration is on disk."""
    key = key_of(config)
    cached = read(out, name)
    if cached is not None and cached[0]["key"] == key:
        return cached[0]
    started = time.perf_counter()
    data = compute()
    seconds = time.perf_counter() - started if data.seconds is None else data.seconds
    record = {
        "key": key,
        "config": config,
        "hardware": data.hardware or hardware(device.type),
        "seconds": round(seconds, 1),
        "figures": data.figures,
    }
    text = json.dumps(record, indent=1, ensure_ascii=False) + "\n"
    arrays: dict[str, Any] = {**data.arrays, "key": np.array(key)}
    with write_file(out / f"{name}.npz") as path, path.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)
    write_text(out / f"{name}.json", text)
    plain: dict[str, Any] = json.loads(text)
    return plain


def cached_part(
    out: Path, config: Mapping[str, Any], device: torch.device, compute: Callable[[], FigureData]
) -> FigureData:
    """Return one part of a figure that takes long, from disk if it was computed before."""
    folder, name = out / PARTS, key_of(config)
    cached_figure(folder, name, config, device, compute)
    cached = read(folder, name)
    if cached is None:
        raise RunError(f"{folder / name}.json: changed while it was read; make the figure again")
    return FigureData(cached[0]["figures"], cached[1])


def read_record(out: Path, name: str) -> dict[str, Any] | None:
    """Read the record of a figure; None if the file is missing or damaged."""
    with suppress(OSError, ValueError):
        record: dict[str, Any] = json.loads((out / f"{name}.json").read_text(encoding="utf-8"))
        return record
    return None


def read(out: Path, name: str) -> tuple[dict[str, Any], dict[str, NDArray[Any]]] | None:
    """Read record and arrays; None if one is missing or damaged or they do not belong together."""
    record = read_record(out, name)
    with suppress(*DAMAGED):
        with (out / f"{name}.npz").open("rb") as file, np.load(file, allow_pickle=False) as loaded:
            arrays = {each: loaded[each] for each in loaded.files}
        if record is not None and record["key"] == str(arrays.pop("key")):
            return record, arrays
    return None
