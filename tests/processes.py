"""Python in a process of its own."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = f"{ROOT / 'src'}:{ROOT / 'lab'}"


def run_python(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run Python with the package and nothing else on its path."""
    return subprocess.run(
        [sys.executable, *arguments],
        env={"PYTHONPATH": SOURCES, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
