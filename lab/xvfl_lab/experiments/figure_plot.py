"""Pictures of cached figures, drawn again when the figure changes."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from xvfl.errors import RunError
from xvfl_lab.experiments.figure_cache import read
from xvfl_lab.files import write_file

Plot = Callable[[dict[str, Any], dict[str, NDArray[Any]]], Figure]
"""Draws a figure from its numbers and arrays."""

MARK = "xvfl figure"
"""Metadata field of a picture that holds the key of its figure."""


def draw_once(out: Path, name: str, plot: Plot, picture: Path) -> Path:
    """Draw the cached figure of a folder, unless the picture is up to date."""
    cached = read(out, name)
    if cached is None:
        raise RunError(f"{out}: expected {name}.json and {name}.npz; compute the figure first")
    record, arrays = cached
    if _key_of(picture) != record["key"]:
        save_picture(plot(record["figures"], arrays), picture, {MARK: record["key"]})
    return picture


def save_picture(figure: Figure, path: Path, metadata: dict[str, str] | None = None) -> None:
    """Save a picture and free its memory."""
    with write_file(path) as temporary:
        figure.savefig(temporary, dpi=130, metadata=metadata, format="png")
    plt.close(figure)


def arrays_of(arrays: Mapping[str, NDArray[Any]], group: str) -> dict[str, NDArray[Any]]:
    """Select the arrays named GROUP/NAME, by NAME."""
    parts = {key: key.partition("/") for key in arrays}
    return {name: arrays[key] for key, (first, _, name) in parts.items() if first == group}


def _key_of(path: Path) -> str | None:
    try:
        with Image.open(path) as picture:
            mark: str | None = picture.info.get(MARK)
            return mark
    except (FileNotFoundError, UnidentifiedImageError):
        return None
