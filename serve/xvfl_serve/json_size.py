"""Measure JSON before it is decoded: a few bytes of it can take a hundred times their memory."""

import codecs
import json
from dataclasses import dataclass
from typing import Any

import numpy as np

OBJECT_CELLS = 4
"""Number of cells that an object counts as."""
FIELD_CELLS = 2
"""Number of cells that a field of an object, name and value, counts as."""
MIN_DEPTH = 8
"""No limit of the depth is below this one."""
_SHORT, _CHUNK = 4096, 2**20
_OPEN = np.zeros(256, dtype=np.int8)
_OPEN[list(b"[{")] = 1
_OPEN[list(b"]}")] = -1
_CELLS = np.zeros(256, dtype=np.int64)
_CELLS[list(b",[{:")] = 1, 1, OBJECT_CELLS, FIELD_CELLS - 1


@dataclass(frozen=True)
class JsonSize:
    """An upper bound of what a JSON text decodes to."""

    cells: int
    """Numbers, texts and lists; an object counts as `OBJECT_CELLS`, a field more."""
    depth: int
    """Lists and objects within each other."""


def measure_json(text: bytes) -> JsonSize:
    """Return an upper bound of the size of JSON, without decoding it.

    Exact up to the first error of broken JSON, which is as far as a decoder gets.
    """
    opened = text.count(b"[") + text.count(b"{")
    if opened <= MIN_DEPTH and len(text) <= _SHORT:
        cells = sum(text.count(each) * int(_CELLS[ord(each)]) for each in (b",", b"[", b"{", b":"))
        return JsonSize(cells + 1, opened)
    # Without escapes, a text ends at the next quote.
    plain = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    counts = np.zeros(256, dtype=np.int64)
    depth = deepest = 0
    inside = False
    for start in range(0, len(plain), _CHUNK):
        chunk = np.frombuffer(plain, np.uint8, min(_CHUNK, len(plain) - start), start)
        in_text = np.logical_xor.accumulate(chunk == ord('"')) ^ inside
        inside = bool(in_text[-1])
        outside = chunk[~in_text]
        if len(outside):
            counts += np.bincount(outside, minlength=256)
            depths = depth + np.cumsum(_OPEN[outside], dtype=np.int32)
            depth, deepest = int(depths[-1]), max(deepest, int(depths.max()))
    return JsonSize(int(counts @ _CELLS) + 1, deepest)


def load_json(text: bytes, cells: int, depth: int) -> Any:
    """Decode JSON; raise `ValueError` if it exceeds this number of cells or depth."""
    size = measure_json(text)
    if size.depth > depth:
        raise ValueError(f"JSON nested {size.depth} deep, expected at most {depth}")
    if size.cells > cells:
        raise ValueError(f"JSON of {size.cells} values, expected at most {cells}")
    # Of bytes, `json.loads` would decode UTF-16 and UTF-32, too, which are not measured.
    return json.loads(text.removeprefix(codecs.BOM_UTF8).decode())
