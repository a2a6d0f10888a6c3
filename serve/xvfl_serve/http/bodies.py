"""Bodies of requests: JSON, CSV and Parquet, within limits."""

import asyncio
import codecs
import csv
import io
import json
from collections import Counter
from collections.abc import Iterable
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
SEPARATORS = ",;\t|"
"""Separators of CSV files, as in training."""


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
    """Parse a JSON object; NaN, infinity and a field that occurs twice are rejected."""
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


def read_csv(body: bytes) -> list[dict[str, Any]]:
    """Read rows of a CSV file with a header; an empty cell is missing.

    The separator is the one that occurs most often in the header.
    """
    try:
        text = body.decode("utf-8-sig")
        separator = max(SEPARATORS, key=text.partition("\n")[0].count)
        lines = list(csv.reader(io.StringIO(text, newline=""), delimiter=separator))
    except (UnicodeDecodeError, csv.Error) as error:
        raise RequestError(f"expected a CSV file in UTF-8 ({error})", status=400) from error
    if not lines:
        raise RequestError("expected a CSV file with a header, got an empty body", status=400)
    header = lines[0]
    _check_unique(header, "column")
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
        _check_unique(file.schema_arrow.names, "column")
        return _parquet_rows(file.read())
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        if isinstance(error, RequestError):
            raise
        raise RequestError(f"expected a Parquet file ({error})", status=400) from error


def _parquet_rows(table: Any) -> list[dict[str, Any]]:
    """Return rows of JSON values, dates and durations; other values as the text of training."""
    import pyarrow

    types, texts = pyarrow.types, []
    for at, field in enumerate(table.schema):
        kind = field.type
        if (types.is_timestamp(kind) or types.is_duration(kind)) and kind.unit == "ns":
            # Python's dates have microseconds.
            coarse = pyarrow.duration("us")
            if types.is_timestamp(kind):
                coarse = pyarrow.timestamp("us", kind.tz)
            table = table.set_column(at, field.name, table.column(at).cast(coarse, safe=False))
        elif types.is_decimal(kind) or types.is_time(kind) or types.is_binary(kind):
            texts.append(field.name)
    rows: list[dict[str, Any]] = table.to_pylist()
    for row in rows:
        for name in texts:
            if (cell := row[name]) is not None:
                row[name] = cell.decode(errors="replace") if type(cell) is bytes else str(cell)
    return rows


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
