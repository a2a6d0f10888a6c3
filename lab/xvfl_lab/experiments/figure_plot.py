"""Pictures of kept figures: NAME.png beside NAME.json, drawn again once the figure changed."""

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
"""From a figure's numbers and arrays to its picture."""

MARK = "xvfl figure"
"""Where a picture says which figure it is of."""
OKABE_ITO = (
    "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7", "#000000"
)  # fmt: skip
"""Colours that colour-blind people tell apart (M. Okabe, K. Ito 2008)."""


def draw_once(out: Path, name: str, plot: Plot) -> Path:
    """Draw a kept figure, unless its picture is there."""
    found = read(out, name)
    if found is None:
        raise RunError(f"{out}: expected {name}.json with its {name}.npz; make the figure first")
    record, arrays = found
    path = out / f"{name}.png"
    if _drawn(path) != record["key"]:
        figure = plot(record["figures"], arrays)
        try:
            figure.savefig(path, dpi=130, metadata={MARK: record["key"]})
        except OSError as error:
            raise RunError(f"{path}: could not be written ({error.strerror})") from error
        finally:
            plt.close(figure)
    return path


def _drawn(path: Path) -> str | None:
    try:
        with Image.open(path) as picture:
            mark: str | None = picture.info.get(MARK)
            return mark
    except (FileNotFoundError, UnidentifiedImageError):
        return None
