"""Pictures of cached figures, drawn again when the figure changes."""

from collections.abc import Callable
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
        figure = plot(record["figures"], arrays)
        try:
            picture.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(picture, dpi=130, metadata={MARK: record["key"]})
        except OSError as error:
            raise RunError(f"{picture}: could not be written ({error.strerror})") from error
        finally:
            plt.close(figure)
    return picture


def _key_of(path: Path) -> str | None:
    try:
        with Image.open(path) as picture:
            mark: str | None = picture.info.get(MARK)
            return mark
    except (FileNotFoundError, UnidentifiedImageError):
        return None
