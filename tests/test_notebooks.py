"""The tutorials: they run, and the notebooks and pages in the docs are those of their scripts."""

import base64
import re
import runpy
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.small_tables import SOURCE, is_png

ROOT = SOURCE.parent
PAGES = ROOT / "docs" / "tutorials"
SCRIPT: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "notebooks.py"))
NAMES = SCRIPT["NAMES"]
PLOTS = {"two_messy_tables": 4, "explain_and_report": 2, "your_own_method": 3}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_tutorials_run(name: str, tmp_path: Path) -> None:
    """Run every cell, with shorter trainings than the reader's."""
    notebook = SCRIPT["read_notebook"](name)
    for cell in notebook.cells:
        cell.source = cell.source.replace("epochs=30", "epochs=3")
    notebook = SCRIPT["execute"](notebook, tmp_path)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert not any(output.output_type == "error" for output in outputs)
    page, plots = SCRIPT["to_markdown"](notebook, name)
    assert len(plots) == PLOTS[name]
    assert all(data.startswith(b"\x89PNG") and len(data) > 2000 for data in plots.values())
    assert str(tmp_path) not in page
    if name == "two_messy_tables":
        assert "398 ids differ only in leading zeros" in page, "the near miss of the ids is found"
        assert re.search(r"<th>clinic</th>\s*<td>398</td>\s*<td>283</td>", page), "and corrected"
    if name == "explain_and_report":
        assert (tmp_path / "explanation.html").stat().st_size > 10_000


@pytest.mark.parametrize("name", NAMES)
def test_notebooks_and_pages_are_those_of_the_scripts(name: str) -> None:
    source = SCRIPT["read_notebook"](name)
    stored = nbformat.read(PAGES / f"{name}.ipynb", as_version=4)
    nbformat.validate(stored)
    page = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    assert len(source.cells) == len(stored.cells)
    for cell, kept in zip(source.cells, stored.cells, strict=True):
        assert cell.cell_type == kept.cell_type
        if cell.cell_type == "code":
            assert cell.source == kept.source, "run scripts/notebooks.py"
            assert cell.source.removeprefix("%%bash\n") in page
        else:
            lines = cell.source.splitlines()
            assert all(line in page for line in lines), "run scripts/notebooks.py"
    plots = [
        base64.b64decode(output.data["image/png"])
        for cell in stored.cells
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]
    files = re.findall(rf"\(({name}-\d+\.png)\)", page)
    assert [(PAGES / file).read_bytes() for file in files] == plots and len(files) == PLOTS[name]


def test_the_gallery_shows_existing_plots_and_pages() -> None:
    text = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    pairs = re.findall(r'<a href="([^"#]+)\.html(?:#[^"]*)?"><img src="([^"]+)"', text)
    assert len(pairs) == text.count("<img")
    for page, plot in pairs:
        assert (ROOT / "docs" / f"{page}.md").is_file() and is_png(ROOT / "docs" / plot)
