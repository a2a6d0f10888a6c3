"""Figures kept on disk as NAME.json and NAME.npz, made again once their configuration changed.

Torch and numpy alone: a machine without matplotlib computes, another one draws.
"""

import json
import os
import time
import zipfile
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from xvfl.errors import RunError
from xvfl_lab.experiments.dispatch import hardware
from xvfl_lab.experiments.run_store import PROTOCOL

PIECES = "pieces"
"""Folder of the pieces of unfinished figures; it can go once they are made."""
Tell = Callable[[str], None]
"""Told in words what is being done."""


@dataclass(frozen=True)
class Made:
    """What a figure is made of."""

    figures: dict[str, Any]
    """Plain numbers and texts, for people."""
    arrays: dict[str, NDArray[Any]]
    """What a picture needs beside them."""


def keep(
    out: Path,
    name: str,
    config: Mapping[str, Any],
    device: torch.device,
    compute: Callable[[], Made],
) -> dict[str, Any]:
    """Give a figure's record, from disk where the same configuration made it before."""
    name_of = key(config)
    found = read(out, name)
    if found is not None and found[0]["key"] == name_of:
        return found[0]
    started = time.perf_counter()
    made = compute()
    about = {
        "key": name_of,
        "config": config,
        "hardware": hardware(device.type),
        "seconds": round(time.perf_counter() - started, 1),
        "figures": made.figures,
    }
    text = json.dumps(about, indent=1, ensure_ascii=False) + "\n"
    arrays: dict[str, Any] = {**made.arrays, "key": np.array(name_of)}
    _whole(out / f"{name}.npz", lambda path: _save(path, arrays))
    _whole(out / f"{name}.json", lambda path: path.write_text(text, encoding="utf-8"))
    plain: dict[str, Any] = json.loads(text)
    return plain


def piece(
    out: Path, config: Mapping[str, Any], device: torch.device, compute: Callable[[], Made]
) -> Made:
    """Give one piece of a figure that is long in the making, from disk where it was made before."""
    folder, name = out / PIECES, key(config)
    keep(folder, name, config, device, compute)
    found = read(folder, name)
    if found is None:
        raise RunError(f"{folder / name}.json: changed while it was read; make the figure again")
    return Made(found[0]["figures"], found[1])


def key(config: Mapping[str, Any]) -> str:
    """Name a figure by all that decides it."""
    text = json.dumps([PROTOCOL, config], sort_keys=True)
    return blake2b(text.encode(), digest_size=10).hexdigest()


def record(out: Path, name: str) -> dict[str, Any] | None:
    """Read a figure's record alone; None where it is not there or damaged."""
    with suppress(OSError, ValueError):
        found: dict[str, Any] = json.loads((out / f"{name}.json").read_text(encoding="utf-8"))
        return found
    return None


def read(out: Path, name: str) -> tuple[dict[str, Any], dict[str, NDArray[Any]]] | None:
    """Read a figure's record and arrays; None where they are not there, damaged or not a pair."""
    about = record(out, name)
    with suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
        with (out / f"{name}.npz").open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            found = {each: arrays[each] for each in arrays.files}
        if about is not None and about["key"] == str(found.pop("key")):
            return about, found
    return None


def _save(path: Path, arrays: dict[str, Any]) -> None:
    with path.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


def _whole(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(temporary)
        os.replace(temporary, path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise RunError(f"{path}: could not be written ({error.strerror or error})") from error
