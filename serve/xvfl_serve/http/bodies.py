"""Bodies of requests: JSON, CSV and Parquet, within limits."""

import asyncio
import codecs
import csv
import io
import json
import logging
import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import date, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from starlette.requests import Request

from xvfl_serve.errors import RequestError
from xvfl_serve.http.size_limits import SizeLimits

JSON_TYPES = ("application/json", "application/x-www-form-urlencoded", "")
"""Content types of JSON; the second is what curl sends by default."""
CSV_TYPE = "text/csv"
PARQUET_TYPES = ("application/vnd.apache.parquet", "application/x-parquet")
MAX_CELL = 2**17
csv.field_size_limit(MAX_CELL)
SEPARATORS = (b",", b";", b"\t", b"|")
"""Separators of CSV files, as in training."""
PARQUET_WORKER = Path(__file__).with_name("parquet_worker.py")
PARQUET_MEMORY = 256 * 2**20
"""Memory for decoding a Parquet file, in bytes."""
log = logging.getLogger("xvfl_serve")


def _reject_constant(name: str) -> None:
    raise _broken_json(f"{name} is not JSON; use null for a missing value")


def _unique_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        _check_unique((name for name, _ in pairs), "field")
    return fields


_DECODER = json.JSONDecoder(parse_constant=_reject_constant, object_pairs_hook=_unique_fields)


def content_type(request: Request) -> str:
    """Return the content type without parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def read_body(
    request: Request, max_bytes: int, max_seconds: float, on_part: Callable[[int], None]
) -> bytes:
    """Read the body of a request; reject one that is too large or arrives too slowly.

    `on_part` is called with the size of each part, and may raise to stop.
    """
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > max_bytes:
        raise _too_large(max_bytes)
    parts, size = [], 0
    try:
        async with asyncio.timeout(max_seconds):
            async for part in request.stream():
                size += len(part)
                if size > max_bytes:
                    raise _too_large(max_bytes)
                on_part(len(part))
                parts.append(part)
    except TimeoutError as error:
        raise RequestError(
            f"expected the whole request within {max_seconds:g} s; send it again",
            status=408,
        ) from error
    return b"".join(parts)


def parse_json(body: bytes, limits: SizeLimits, example: str = '{"rows": [...]}') -> dict[str, Any]:
    """Parse a JSON object within limits; see `decode_json`."""
    limits.check_json(body)
    return decode_json(body, example)


def decode_json(body: bytes, example: str = '{"rows": [...]}') -> dict[str, Any]:
    """Decode a JSON object; NaN, infinity and a field that occurs twice are rejected."""
    if not body.strip():
        raise RequestError(f"expected a JSON object such as {example}, got nothing", status=400)
    try:
        data = _DECODER.decode(body.removeprefix(codecs.BOM_UTF8).decode())
    except RequestError:
        raise
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise _broken_json(str(error)) from error
    except RecursionError as error:
        raise _broken_json("nested too deeply") from error
    except ValueError as error:
        raise _broken_json("a number has too many digits") from error
    if not isinstance(data, dict):
        raise RequestError(
            f"expected a JSON object such as {example}, got {type(data).__name__}", status=400
        )
    return data


def read_csv(body: bytes, limits: SizeLimits) -> list[dict[str, Any]]:
    """Read rows of a CSV file with a header; an empty cell is missing.

    The separator is the one that occurs most often in the header.
    """
    separator = max(SEPARATORS, key=body.partition(b"\n")[0].count)
    # A line is read as a whole, so that its cells are counted too late. Texts have separators too.
    if body.count(separator) > limits.max_cells:
        limits.check_cells(body.count(separator))
    text = io.TextIOWrapper(io.BytesIO(body), "utf-8-sig", newline="")
    rows: list[dict[str, Any]] = []
    try:
        lines = csv.reader(text, delimiter=separator.decode())
        header = next(lines, None)
        if header is None:
            raise RequestError("expected a CSV file with a header, got an empty body", status=400)
        limits.check_columns(len(header))
        _check_unique(header, "column")
        for number, line in enumerate(lines):
            if not line:
                continue
            if len(line) != len(header):
                raise RequestError(
                    f"row {number}: expected {len(header)} cells as in the header, got {len(line)}",
                    row=number,
                    status=400,
                )
            check_rows(len(rows) + 1, limits.rows)
            limits.check_cells((len(rows) + 1) * len(header))
            rows.append(dict(zip(header, line, strict=True)))
    except (UnicodeDecodeError, csv.Error) as error:
        raise RequestError(f"expected a CSV file in UTF-8 ({error})", status=400) from error
    return rows


def read_parquet(body: bytes, limits: SizeLimits) -> list[dict[str, Any]]:
    """Read rows of a Parquet file, in a process with limited memory; needs pyarrow."""
    if find_spec("pyarrow") is None:
        raise RequestError(
            "this server does not read Parquet: install xvfl-serve[parquet], or send CSV or JSON",
            status=415,
        )
    worker_limits = {
        "rows": limits.rows,
        "columns": limits.columns,
        "cells": limits.cells,
        "text_bytes": limits.text_bytes,
        "memory": PARQUET_MEMORY,
        "seconds": math.ceil(limits.seconds),
    }
    try:
        done = subprocess.run(
            [sys.executable, "-P", str(PARQUET_WORKER), json.dumps(worker_limits)],
            input=body,
            capture_output=True,
            timeout=limits.seconds,
            check=False,
            env={**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"},
        )
        kind, answer = json.loads(done.stdout)
    except subprocess.TimeoutExpired as error:
        raise RequestError(
            f"the Parquet file was not decoded in {limits.seconds:g} s, the limit; send fewer rows",
            "rows",
            status=413,
        ) from error
    except ValueError as error:
        log.error("the Parquet decoder exited with code %d", done.returncode)
        raise RequestError(
            "expected a Parquet file, but it cannot be decoded; send CSV or JSON", status=400
        ) from error
    if kind == "error":
        status, message, field = answer
        raise RequestError(message, field, status=status)
    return [{name: _read_cell(cell) for name, cell in row.items()} for row in answer]


def _read_cell(cell: Any) -> Any:
    """Read a cell as the decoder writes it."""
    if not isinstance(cell, dict):
        return cell
    ((kind, value),) = cell.items()
    if kind == "timedelta":
        return timedelta(seconds=value)
    return (datetime if kind == "datetime" else date).fromisoformat(value)


def check_rows(count: int, limit: int, field: str = "rows") -> None:
    """Reject too many rows."""
    if count > limit:
        raise RequestError(
            f"{field}: expected at most {limit}, got {count}; send them in several requests",
            field,
            status=413,
        )


def _check_unique(names: Iterable[str], what: str) -> None:
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise RequestError(f"{what} {twice[:100]!r} occurs twice; rename one", twice, status=400)


def _broken_json(reason: str) -> RequestError:
    return RequestError(f"expected JSON, but it is broken: {reason}", status=400)


def _too_large(limit: int) -> RequestError:
    return RequestError(
        f"expected at most {limit} bytes; send the rows in several requests", status=413
    )
