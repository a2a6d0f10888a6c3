"""Decode a Parquet file in a process of its own, whose memory is limited.

Compression, dictionaries and encodings of Parquet multiply a few bytes, and its headers may claim
any size; no check before decoding finds them all. This file runs as a script, so that the process
imports nothing but pyarrow: a body on its standard input, limits as JSON in its argument, and a
JSON text of the rows or of an error on its standard output.
"""

import json
import sys
from collections import Counter
from datetime import date, timedelta
from typing import Any

import pyarrow
import pyarrow.compute
import pyarrow.parquet

types = pyarrow.types
BATCH = 1024
MAX_LIST = 10_000
"""Longest list in the header; pyarrow reserves memory for what a header claims."""


class RefusedError(Exception):
    """The file is rejected, with this HTTP status, message and field."""


def main() -> None:
    """Decode the body on the standard input."""
    limits = json.loads(sys.argv[1])
    pyarrow.set_cpu_count(1)
    limit_memory(limits["memory"], limits["seconds"])
    try:
        answer: tuple[str, Any] = ("rows", read_rows(sys.stdin.buffer.read(), limits))
    except RefusedError as error:
        answer = ("error", error.args)
    except MemoryError:
        text = "expected a Parquet file, but decoding it takes too much memory; send fewer rows"
        answer = ("error", (413, text, "rows"))
    except Exception as error:
        answer = ("error", (400, f"expected a Parquet file ({str(error)[:300]})", ""))
    sys.stdout.buffer.write(json.dumps(answer, default=write_cell, ensure_ascii=False).encode())


def write_cell(cell: object) -> dict[str, str | float]:
    """Write a date, a time or a duration as an object with one field, its type."""
    if isinstance(cell, timedelta):
        return {"timedelta": cell.total_seconds()}
    if isinstance(cell, date):
        return {type(cell).__name__: cell.isoformat()}
    raise TypeError(f"a {type(cell).__name__} is no cell")


def limit_memory(size: int, seconds: int) -> None:
    """Limit what this process may allocate from now on, and its processor time."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
    except OSError:  # not Linux
        used = 2**30
    for kind, limit in ((resource.RLIMIT_AS, used + size), (resource.RLIMIT_CPU, seconds)):
        _, hard = resource.getrlimit(kind)
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (limit, limit))


def read_rows(body: bytes, limits: dict[str, int]) -> list[dict[str, Any]]:
    """Return rows of JSON values, dates and durations; other values as the text of training."""
    source = pyarrow.BufferReader(body)
    options = {"thrift_container_size_limit": MAX_LIST, "pre_buffer": False}
    file = pyarrow.parquet.ParquetFile(source, **options)
    check_schema(file.schema_arrow, limits["columns"])
    check_limit("rows", file.metadata.num_rows, limits["rows"])
    texts = with_dictionary(file)
    source.seek(0)
    file = pyarrow.parquet.ParquetFile(source, read_dictionary=texts, **options)
    rows: list[dict[str, Any]] = []
    cells = text_bytes = 0
    for batch in file.iter_batches(BATCH, use_threads=False):
        check_limit("rows", len(rows) + len(batch), limits["rows"])
        cells += sum(count_cells(column) for column in batch.columns)
        check_limit("values", cells, limits["cells"])
        text_bytes += sum(count_text(column) for column in batch.columns)
        check_limit("bytes of texts", text_bytes, limits["text_bytes"])
        rows += to_rows(pyarrow.Table.from_batches([batch]))
    return rows


def with_dictionary(file: Any) -> list[str]:
    """Return the columns of texts that stay in their dictionary until their size is known."""
    texts = {field.name for field in file.schema_arrow if is_text(field.type)}
    for group in range(file.metadata.num_row_groups):
        chunks = file.metadata.row_group(group)
        for at in range(chunks.num_columns):
            chunk = chunks.column(at)
            if any(each.startswith("DELTA") for each in chunk.encodings):
                # pyarrow has no dictionary of these encodings.
                texts.discard(chunk.path_in_schema)
    return sorted(texts)


def check_schema(schema: Any, columns: int) -> None:
    """Reject too many columns, equal names, and types that are no cells."""
    if len(schema) > columns:
        text = f"expected at most {columns} columns, got {len(schema)}; leave the others out"
        raise RefusedError(413, text, "")
    twice = next((name for name, count in Counter(schema.names).items() if count > 1), None)
    if twice is not None:
        raise RefusedError(400, f"column {twice[:100]!r} occurs twice; rename one", twice)
    for field in schema:
        if not is_cell(field.type):
            text = (
                f"column {field.name[:100]!r}: expected numbers, texts, dates or lists of numbers"
            )
            raise RefusedError(422, f"{text}, got {str(field.type)[:100]}", field.name)


def check_limit(what: str, count: int, limit: int) -> None:
    """Reject more than the limit."""
    if count > limit:
        text = f"rows: expected at most {limit} {what}, got {count} or more; send fewer rows"
        raise RefusedError(413, text, "rows")


def is_text(kind: Any) -> bool:
    """Return whether values of a type have a length of their own."""
    checks = (
        types.is_string,
        types.is_large_string,
        types.is_binary,
        types.is_large_binary,
        types.is_fixed_size_binary,
    )
    return any(check(kind) for check in checks)


def is_number(kind: Any) -> bool:
    """Return whether a type is a number, or no value at all."""
    return any(
        check(kind)
        for check in (types.is_integer, types.is_floating, types.is_boolean, types.is_null)
    )


def is_list(kind: Any) -> bool:
    """Return whether a type is a list."""
    checks = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    return any(check(kind) for check in checks)


def is_cell(kind: Any) -> bool:
    """Return whether values of a type are cells of a row."""
    if types.is_dictionary(kind):
        return is_cell(kind.value_type) and not is_list(kind.value_type)
    if is_list(kind):
        return is_number(kind.value_type) or (is_list(kind.value_type) and is_cell(kind.value_type))
    dates = (types.is_date, types.is_time, types.is_timestamp, types.is_duration)
    others = any(check(kind) for check in (types.is_decimal, *dates))
    return is_number(kind) or is_text(kind) or others


def count_cells(column: Any) -> int:
    """Count values and lists."""
    return len(column) + (count_cells(column.flatten()) if is_list(column.type) else 0)


def count_text(column: Any) -> int:
    """Count the bytes of a column's texts."""
    compute = pyarrow.compute
    if types.is_dictionary(column.type):
        if not is_text(column.type.value_type):
            return 0
        lengths = compute.binary_length(column.dictionary).take(column.indices)
    elif is_text(column.type):
        lengths = compute.binary_length(column)
    else:
        return 0
    return int(compute.sum(lengths.cast(pyarrow.int64())).as_py() or 0)


def to_rows(table: Any) -> list[dict[str, Any]]:
    """Convert a table; Python's dates have microseconds."""
    texts = []
    for at, field in enumerate(table.schema):
        kind = field.type.value_type if types.is_dictionary(field.type) else field.type
        if (types.is_timestamp(kind) or types.is_duration(kind)) and kind.unit == "ns":
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


if __name__ == "__main__":
    main()
