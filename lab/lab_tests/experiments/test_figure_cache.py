"""Figures kept on disk: made once for a configuration, and again when it changed or was damaged."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from xvfl.errors import RunError
from xvfl_lab.experiments.figure_cache import FigureData, cached_figure, cached_part, read
from xvfl_lab.experiments.figure_plot import draw_once

CPU = torch.device("cpu")


class Count:
    """Make a figure and count how often."""

    def __init__(self) -> None:
        self.made = 0
        self.run_rows = 0

    def __call__(self) -> FigureData:
        self.made += 1
        return FigureData({"times": self.made, "where": (1, 2)}, {"a": np.arange(3)})

    def plot(self, _figures: dict[str, Any], _arrays: dict[str, Any]) -> Figure:
        self.run_rows += 1
        return plt.figure(figsize=(1, 1))


def test_a_figure_is_made_once_for_each_configuration(tmp_path: Path) -> None:
    count = Count()
    first = cached_figure(tmp_path / "new", "one", {"x": (1, None)}, CPU, count)
    assert cached_figure(tmp_path / "new", "one", {"x": (1, None)}, CPU, count) == first
    assert first["figures"] == {"times": 1, "where": [1, 2]} and "seconds" in first
    again = cached_figure(tmp_path / "new", "one", {"x": (2, None)}, CPU, count)
    assert again["figures"]["times"] == 2
    found = read(tmp_path / "new", "one")
    assert found is not None and found[0] == again and found[1]["a"].tolist() == [0, 1, 2]
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["one.json", "one.npz"]


@pytest.mark.parametrize("name", ["one.npz", "one.json"])
@pytest.mark.parametrize("harm", ["cut", "gone", "other"])
def test_damage_or_arrays_of_another_figure_have_it_made_again(
    tmp_path: Path, name: str, harm: str
) -> None:
    count = Count()
    cached_figure(tmp_path, "one", {"x": 1}, CPU, count)
    cached_figure(tmp_path, "two", {"x": 2}, CPU, count)
    path = tmp_path / name
    if harm == "cut":
        path.write_bytes(path.read_bytes()[:-30])
    elif harm == "gone":
        path.unlink()
    else:
        (tmp_path / name.replace("one", "two")).replace(path)
    assert cached_figure(tmp_path, "one", {"x": 1}, CPU, count)["figures"]["times"] == 3


def test_pieces_are_told_apart_by_their_configuration(tmp_path: Path) -> None:
    count = Count()
    for _ in range(2):
        for x in (1, 2):
            made = cached_part(tmp_path, {"x": x}, CPU, count)
            assert made.figures["times"] == x and made.arrays["a"].tolist() == [0, 1, 2]
    assert count.made == 2


def test_a_picture_is_drawn_again_only_when_its_figure_changed(tmp_path: Path) -> None:
    count, picture = Count(), tmp_path / "pictures" / "one.png"
    with pytest.raises(RunError, match="compute the figure first"):
        draw_once(tmp_path, "one", count.plot, picture)
    cached_figure(tmp_path, "one", {"x": 1}, CPU, count)
    path = draw_once(tmp_path, "one", count.plot, picture)
    assert path.read_bytes()[:4] == b"\x89PNG"
    assert draw_once(tmp_path, "one", count.plot, picture) == path and count.run_rows == 1
    cached_figure(tmp_path, "one", {"x": 2}, CPU, count)
    draw_once(tmp_path, "one", count.plot, picture)
    assert count.run_rows == 2
    path.write_bytes(b"not a picture")
    draw_once(tmp_path, "one", count.plot, picture)
    assert count.run_rows == 3
