"""Read JSON files of a folder that another process may be writing, or that may be damaged."""

import json
from pathlib import Path
from typing import Any

from xvfl.system.files import read_jsonl

MAX_FILE_BYTES = 16 * 2**20
"""Largest file that is read."""


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; empty if there is none, or if it is too large or damaged."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            return {}
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read the lines of a JSONL file; none if it does not exist or is too large."""
    try:
        return read_jsonl(path) if path.stat().st_size <= MAX_FILE_BYTES else []
    except OSError:
        return []
