"""Run the tutorials, and write them as notebooks and as pages of the docs.

The sources are the scripts in examples/notebooks: `# %%` starts a code cell, `# %% [markdown]` a
text. `python scripts/notebooks.py` runs all of them, or those named, and writes
docs/tutorials/NAME.ipynb, NAME.md and the plots NAME-1.png, …. The tests import `execute`.
"""

import base64
import os
import re
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "examples" / "notebooks"
PAGES = ROOT / "docs" / "tutorials"
SITE = "https://xvfl.github.io/xvfl/"
NAMES = ("two_messy_tables", "explain_and_report", "your_own_method")
SECONDS = 1800
"""Longest time of a cell, also on a busy machine."""


def read_notebook(name: str) -> NotebookNode:
    """Build a notebook from its script, without outputs."""
    text = (SOURCES / f"{name}.py").read_text(encoding="utf-8")
    cells = []
    for number, part in enumerate(re.split(r"^# %%(?=\n| \[)", text, flags=re.MULTILINE)[1:]):
        kind, _, body = part.partition("\n")
        body = body.strip()
        # Texts and shell commands are comments in the script.
        plain = re.sub(r"^# ?", "", body, flags=re.MULTILINE)
        shell = plain.startswith("%%bash")
        cell = (
            new_markdown_cell(plain)
            if "[markdown]" in kind
            else new_code_cell(plain if shell else body)
        )
        cell["id"] = f"cell-{number}"
        cells.append(cell)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return new_notebook(cells=cells, metadata={"kernelspec": kernel})


def execute(notebook: NotebookNode, folder: Path) -> NotebookNode:
    """Run a notebook in a folder; return it with outputs that do not depend on the machine."""
    (folder / "examples").symlink_to(ROOT / "examples")
    paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PATH": f"{_commands(folder)}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONPATH": os.pathsep.join(paths),
    }
    resources = {"metadata": {"path": str(folder)}}
    client = NotebookClient(notebook, timeout=SECONDS, resources=resources, coalesce_streams=True)
    client.execute(env=environment)
    for cell in notebook.cells:
        cell.metadata = NotebookNode()
        if cell.cell_type == "code":
            cell.outputs = [_clean(output, folder) for output in cell.outputs]
    notebook.metadata.pop("language_info", None)
    return notebook


def _commands(folder: Path) -> Path:
    """Make `python` and `xvfl` the ones of this interpreter."""
    commands = folder / "bin"
    commands.mkdir()
    for name, arguments in {"python": "", "xvfl": "-m xvfl"}.items():
        script = commands / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n')
        script.chmod(0o755)
    return commands


def _clean(output: NotebookNode, folder: Path) -> NotebookNode:
    """Remove paths of this machine and the styles of tables."""
    if output.output_type == "stream":
        text = re.sub(r"\x1b\[[0-9;]*m", "", output.text).replace(f"{folder}/", "")
        # A warning names its file, and repeats the line of code.
        text = re.sub(r"^\S+:\d+: (\w+Warning: .*)\n  .*\n", r"\1\n", text, flags=re.MULTILINE)
        output.text = "\n".join(line.rstrip() for line in text.split("\n"))
    elif "text/html" in output.get("data", {}):
        html = re.sub(r"<style.*?</style>\s*", "", output.data["text/html"], flags=re.DOTALL)
        output.data["text/html"] = html
    return output


def to_markdown(notebook: NotebookNode, name: str) -> tuple[str, dict[str, bytes]]:
    """Write a notebook as a page; return the page and its plots by file name."""
    parts, plots = [], {}
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        shell = cell.source.startswith("%%bash\n")
        language, code = "bash" if shell else "python", cell.source.removeprefix("%%bash\n")
        parts.append(f"```{language}\n{code}\n```")
        for output in cell.outputs:
            data = output.get("data", {})
            if output.output_type == "stream":
                parts.append(f"```text\n{output.text.rstrip()}\n```")
            elif "image/png" in data:
                file = f"{name}-{len(plots) + 1}.png"
                plots[file] = base64.b64decode(data["image/png"])
                parts.append(f"![Plot of the code above]({file})")
            elif "text/html" in data:
                parts.append(_scrolling(data["text/html"]))
            elif "text/plain" in data:
                parts.append(f"```text\n{data['text/plain']}\n```")
    about = f"[Notebook]({name}.ipynb){{ download }} · run by `python scripts/notebooks.py {name}`"
    title, _, rest = parts[0].partition("\n")
    return "\n\n".join([title, about, rest.strip(), *parts[1:]]) + "\n", plots


def _scrolling(html: str) -> str:
    """Give a table the style of the site, and let it scroll on small screens."""
    html = re.sub(r"<table[^>]*>", "<table>", html).replace("<div>", '<div class="scroll">', 1)
    return re.sub(r"\n\s*\n", "\n", html)


def write(name: str, notebook: NotebookNode) -> None:
    """Write a notebook, its page and its plots."""
    page, plots = to_markdown(notebook, name)
    for old in PAGES.glob(f"{name}-*.png"):
        old.unlink()
    for file, data in plots.items():
        (PAGES / file).write_bytes(data)
    (PAGES / f"{name}.md").write_text(page, encoding="utf-8")
    for cell in notebook.cells:
        # In a downloaded notebook, links lead to the site.
        if cell.cell_type == "markdown":
            cell.source = re.sub(r"\]\(\.\./([\w/-]+)\.md", rf"]({SITE}\1.html", cell.source)
    nbformat.write(notebook, PAGES / f"{name}.ipynb")


if __name__ == "__main__":
    for chosen in sys.argv[1:] or NAMES:
        with tempfile.TemporaryDirectory() as temporary:
            write(chosen, execute(read_notebook(chosen), Path(temporary)))
        print(f"wrote {PAGES / chosen}.md")
