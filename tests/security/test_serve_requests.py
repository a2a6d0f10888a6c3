"""Requests that are small and decode to gigabytes: rejected, while others are answered."""

import io
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.security.serve_process import MAX_PEAK, attacked

SIZE = 16 * 2**20 - 1000
"""Just below the largest body."""
PARQUET, CSV, JSON = "application/vnd.apache.parquet", "text/csv", "application/json"
LONG = "x" * 2**20


def repeat(head: bytes, part: bytes, tail: bytes = b"") -> bytes:
    """Repeat a part up to the largest body."""
    return head + part * ((SIZE - len(head) - len(tail)) // len(part)) + tail


def dictionary() -> bytes:
    """A column of 7,000 rows with one text of 1 MiB."""
    job = pa.DictionaryArray.from_arrays(pa.array([0] * 7000, pa.int32()), pa.array([LONG]))
    return parquet(pa.table({"job": job}), 1)


def compressed() -> bytes:
    """Pages that are a thousand times as large when unpacked."""
    return parquet(pa.table({"job": [LONG * 32]}), 24, use_dictionary=False)


def prefixes() -> bytes:
    """Texts that share their prefix with the text before."""
    encoding = {"use_dictionary": False, "column_encoding": {"job": "DELTA_BYTE_ARRAY"}}
    return parquet(pa.table({"job": [LONG] * 50}), 30, **encoding)


def columns() -> bytes:
    """A hundred thousand columns."""
    return parquet(pa.table({f"c{i}": pa.array([], pa.int8()) for i in range(30_000)}), 1)


def structs() -> bytes:
    """Objects within objects."""
    value: dict[str, object] = {"b": 0}
    for depth in range(50):
        value = {f"a{depth}": value, "b": depth}
    return parquet(pa.table({"job": [value] * 100}), 1)


def parquet(table: pa.Table, groups: int, **options: object) -> bytes:
    """Write the same rows several times."""
    file = io.BytesIO()
    with pq.ParquetWriter(
        file, table.schema, compression="zstd", write_statistics=False, **options
    ) as writer:
        for _ in range(groups):
            writer.write_table(table)
    return file.getvalue()


BOMBS: dict[str, tuple[str, str, Callable[[], bytes], tuple[int, ...]]] = {
    "parquet dictionary": ("/predict", PARQUET, dictionary, (413,)),
    "parquet compression": ("/predict", PARQUET, compressed, (413,)),
    "parquet prefixes": ("/predict", PARQUET, prefixes, (413,)),
    "parquet columns": ("/predict", PARQUET, columns, (400, 413)),
    "parquet structs": ("/predict", PARQUET, structs, (422,)),
    "csv rows": ("/predict", CSV, lambda: repeat(b"age,job\n", b",\n"), (413,)),
    "csv short rows": ("/predict", CSV, lambda: repeat(b"age\n", b"1\n"), (413,)),
    "csv columns": ("/predict", CSV, lambda: repeat(b"age,job\n", b"ab,"), (413,)),
    "csv header": ("/predict", CSV, lambda: b",".join(b"%d" % i for i in range(1_900_000)), (413,)),
    "json objects": ("/predict", JSON, lambda: repeat(b'{"rows":[', b"{},", b"{}]}"), (413,)),
    "json lists": ("/predict", JSON, lambda: repeat(b'{"rows":[', b"[],", b"[]]}"), (413,)),
    "json fields": (
        "/predict",
        JSON,
        lambda: b'{"rows":[{"":0' + b"".join(b',"%x":0' % i for i in range(1_300_000)) + b"}]}",
        (413,),
    ),
    "json depth": ("/predict", JSON, lambda: b'{"rows":' + b"[" * 900 + b"]" * 900 + b"}", (400,)),
    "json long name": (
        "/predict",
        JSON,
        lambda: b'{"rows":[{"' + b"ab" * (SIZE // 2 - 20) + b'":1}]}',
        (422,),
    ),
    "tensor of no cells": (
        "/v2/models/bank/infer",
        JSON,
        lambda: json.dumps(
            {"inputs": [{"name": "a", "datatype": "FP64", "shape": [3 * 10**7, 0], "data": []}]}
        ).encode(),
        (422,),
    ),
    "tensors of empty rows": (
        "/v2/models/bank/infer",
        JSON,
        lambda: json.dumps(
            {
                "inputs": [
                    {"name": f"a{i}", "datatype": "FP32", "shape": [10_000, 0], "data": []}
                    for i in range(1000)
                ]
            }
        ).encode(),
        (422,),
    ),
    "repeated outputs": (
        "/v2/models/bank/infer",
        JSON,
        lambda: json.dumps(
            {
                "inputs": [
                    {"name": "age", "datatype": "FP32", "shape": [10_000], "data": [40] * 10_000}
                ],
                "outputs": [{"name": "probabilities"}] * 2000,
            }
        ).encode(),
        (422,),
    ),
    "json long text": (
        "/predict",
        JSON,
        lambda: '{"rows":[{"job":"\U0001f600'.encode() + b"x" * (SIZE - 100) + b'"}]}',
        (200,),
    ),
    "tensor of many dimensions": (
        "/v2/models/bank/infer",
        JSON,
        lambda: json.dumps(
            {
                "inputs": [
                    {"name": "a", "datatype": "FP64", "shape": [1, *[10**4000] * 800], "data": []}
                ]
            }
        ).encode(),
        (422,),
    ),
}


FAST = ("parquet dictionary", "csv rows", "json objects", "json depth", "tensor of no cells")


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=() if each in FAST else pytest.mark.slow) for each in BOMBS]
)
def test_a_bomb_is_rejected(bank_bundle: Path, name: str) -> None:
    path, kind, build, expected = BOMBS[name]
    body = build()
    assert len(body) < SIZE + 1000
    with attacked(bank_bundle) as server, server.answering_others() as others:
        status, answer = server.send(path, body, kind)
        print(f"{name}: {len(body)} bytes, status {status}, peak {server.peak / 1e6:.0f} MB")
        assert status in expected, answer[:300]
        assert server.peak < MAX_PEAK
        assert server.predict(age=40)[0] == 200
    assert others and set(others) == {200}


def test_valid_requests_of_the_same_kind_are_answered(bank_bundle: Path) -> None:
    with attacked(bank_bundle) as server:
        table = pa.table({"age": [40.0] * 3000, "job": ["cook"] * 3000})
        assert server.send("/predict", parquet(table, 3), PARQUET)[0] == 200
        encoding = {"use_dictionary": False, "column_encoding": {"job": "DELTA_BYTE_ARRAY"}}
        assert server.send("/predict", parquet(table, 3, **encoding), PARQUET)[0] == 200
        rows = [{"age": 40, "job": '"[{,' * 10, "balance": 1.5}] * 9000
        assert server.send("/predict", json.dumps({"rows": rows}).encode())[0] == 200
        lines = b"age,job\n" + b'40,"a, b, c"\n' * 9000
        assert server.send("/predict", lines, CSV)[0] == 200


@pytest.mark.slow
def test_many_bombs_at_the_same_time(bank_bundle: Path) -> None:
    bodies = [BOMBS[name][1:3] for name in ("parquet dictionary", "json objects", "csv rows")] * 4
    sent = [(kind, build()) for kind, build in bodies]
    with attacked(bank_bundle) as server, server.answering_others() as others:
        with ThreadPoolExecutor(len(sent)) as pool:
            found = list(pool.map(lambda each: server.send("/predict", each[1], each[0])[0], sent))
        print(f"statuses {found}, peak {server.peak / 1e6:.0f} MB")
        assert set(found) <= {413, 503}
        assert server.peak < MAX_PEAK
    assert others and set(others) == {200}
