"""Run the code blocks of docs/tutorial.md and write their outputs and pictures into the docs.

`python scripts/tutorial.py` needs `pip install "xvfl[plots]"`. The tests import `execute`.
"""

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "tutorial.md"
IMAGES = ROOT / "docs" / "images"
BLOCK = re.compile(r"```(python|bash)\n(.*?)```(?:(\n\n```text\n)(.*?)```)?", re.DOTALL)


@contextlib.contextmanager
def working_directory(folder: Path) -> Iterator[None]:
    """Change the working directory for the length of a block."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def execute(page: str, folder: Path) -> str:
    """Run every Python and bash block of a page in a folder; return the page with new outputs."""
    import matplotlib

    matplotlib.use("Agg")
    (folder / "examples").symlink_to(ROOT / "examples")
    names: dict[str, Any] = {"__name__": "tutorial"}
    environment = {
        **os.environ,
        "PATH": f"{_commands(folder)}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
    }

    def run(match: re.Match[str]) -> str:
        language, code, opening, _ = match.groups()
        if language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as stdout:
                exec(compile(code, "docs/tutorial.md", "exec"), names)
            printed = stdout.getvalue()
        else:
            command = ["bash", "-euo", "pipefail", "-c", code]
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr
            printed = done.stdout
        lines = "\n".join(line.rstrip() for line in printed.splitlines())
        output = f"{opening}{lines}\n```" if opening else ""
        return f"```{language}\n{code}```{output}"

    with working_directory(folder):
        return BLOCK.sub(run, page)


def _commands(folder: Path) -> Path:
    """Make `python` and `xvfl` the ones of this interpreter."""
    commands = folder / "bin"
    commands.mkdir()
    for name, arguments in {"python": "", "xvfl": "-m xvfl"}.items():
        script = commands / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n')
        script.chmod(0o755)
    return commands


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        text = execute(PAGE.read_text(encoding="utf-8"), Path(temporary))
        PAGE.write_text(text, encoding="utf-8")
        for picture in Path(temporary).glob("*.png"):
            shutil.copy(picture, IMAGES / picture.name)
