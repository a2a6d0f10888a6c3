"""Bodies of requests: JSON, CSV and Parquet, within limits."""

import asyncio
import csv
import io
import json
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request

from xvfl_serve.errors import RequestError
from xvfl_serve.http.settings import Settings

JSON_TYPES = ("application/json", "application/x-www-form-urlencoded", "")
"""Content types of JSON; the second is what curl sends by default."""
CSV_TYPE = "text/csv"
PARQUET_TYPES = ("application/vnd.apache.parquet", "application/x-parquet")
MAX_CELL = 2**17
csv.field_size_limit(MAX_CELL)


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON; use null for a missing value")


_DECODER = json.JSONDecoder(parse_constant=_reject_constant)


def content_type(request: Request) -> str:
    """Return the content type without parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def read_body(request: Request, settings: Settings) -> bytes:
    """Read the body of a request; reject one that is too large or arrives too slowly."""
    limit = settings.max_bytes
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > limit:
        raise _too_large(limit)
    parts, size = [], 0
    try:
        async with asyncio.timeout(settings.max_seconds):
            async for part in request.stream():
                size += len(part)
                if size > limit:
                    raise _too_large(limit)
                parts.append(part)
    except TimeoutError as error:
        raise RequestError(
            f"expected the whole request within {settings.max_seconds:g} s; send it again",
            status=408,
        ) from error
    return b"".join(parts)


def parse_json(body: bytes, example: str = '{"rows": [...]}') -> dict[str, Any]:
    """Parse a JSON object; NaN and infinity are not JSON."""
    try:
        data = _DECODER.decode(body.decode())
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise RequestError(f"expected JSON, but it is broken: {reason}", status=400) from error
    if not isinstance(data, dict):
        raise RequestError(
            f"expected a JSON object such as {example}, got {type(data).__name__}", status=400
        )
    return data


def read_csv(body: bytes) -> list[dict[str, Any]]:
    """Read rows of a CSV file with a header; an empty cell is missing."""
    try:
        lines = list(csv.reader(io.StringIO(body.decode("utf-8-sig"), newline="")))
    except (UnicodeDecodeError, csv.Error) as error:
        raise RequestError(f"expected a CSV file in UTF-8 ({error})", status=400) from error
    if not lines:
        raise RequestError("expected a CSV file with a header, got an empty body", status=400)
    header = lines[0]
    _check_header(header)
    rows = []
    for number, line in enumerate(lines[1:]):
        if not line:
            continue
        if len(line) != len(header):
            raise RequestError(
                f"row {number}: expected {len(header)} cells as in the header, got {len(line)}",
                row=number,
                status=400,
            )
        rows.append(dict(zip(header, line, strict=True)))
    return rows


def read_parquet(body: bytes, max_rows: int) -> list[dict[str, Any]]:
    """Read rows of a Parquet file; needs pyarrow."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise RequestError(
            "this server does not read Parquet: install xvfl-serve[parquet], or send CSV or JSON",
            status=415,
        ) from error
    try:
        file = pyarrow.parquet.ParquetFile(pyarrow.BufferReader(body))
        check_rows(file.metadata.num_rows, max_rows)
        _check_header(file.schema_arrow.names)
        rows: list[dict[str, Any]] = file.read().to_pylist()
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        if isinstance(error, RequestError):
            raise
        raise RequestError(f"expected a Parquet file ({error})", status=400) from error
    return rows


def check_rows(count: int, limit: int, field: str = "rows") -> None:
    """Reject too many rows."""
    if count > limit:
        raise RequestError(
            f"{field}: expected at most {limit}, got {count}; send them in several requests",
            field,
            status=413,
        )


def _check_header(names: Sequence[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise RequestError(f"column {twice[0]!r} occurs twice; rename one", twice[0], status=400)


def _too_large(limit: int) -> RequestError:
    return RequestError(
        f"expected at most {limit} bytes; send the rows in several requests", status=413
    )
