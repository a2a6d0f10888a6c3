"""What all charts share. matplotlib is optional; it is imported when a chart is drawn."""

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xvfl.errors import RunError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NO_MATPLOTLIB = "plots need matplotlib: pip install 'xvfl[plots]'"
GOOD, NEUTRAL, BAD = "#1b7f5c", "#8a97a3", "#c8452f"
INK, LINE = "#1d2733", "#d9dee3"
DPI = 130


def has_matplotlib() -> bool:
    """Return whether matplotlib can be imported."""
    try:
        import matplotlib.figure  # noqa: F401
    except ModuleNotFoundError:
        return False
    return True


def new_figure(width: float, height: float) -> "Figure":
    """Return an empty figure, in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def plain_axis(axis: Any, *, names: bool = False) -> None:
    """Remove the frame; with names on the vertical axis, its line and ticks too."""
    axis.spines[["top", "right", *(["left"] if names else [])]].set_visible(False)
    if names:
        axis.tick_params(axis="y", length=0)
        axis.grid(axis="x", alpha=0.25)


def png(figure: "Figure") -> bytes:
    """Render a figure."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI)
    return buffer.getvalue()


def save_figure(figure: "Figure", path: Path) -> None:
    """Write a figure to a file."""
    try:
        figure.savefig(path, dpi=DPI)
    except OSError as error:
        raise RunError(f"{path}: could not be written ({error.strerror})") from error
