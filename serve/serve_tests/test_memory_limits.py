"""Small requests and bundles that would take much memory or time."""

import asyncio
import json
import logging
import time
import tracemalloc
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import helper

from xvfl.model.run_dir import RunDir
from xvfl.service.release import load_signing_key
from xvfl_serve import BundleError, Predictor, bundle, read_bundle
from xvfl_serve.bundle import Bundle, pack, unpack
from xvfl_serve.encoding.cells import MissingCells
from xvfl_serve.encoding.columns import CategoryColumn
from xvfl_serve.encoding.encoders import build_encoder
from xvfl_serve.errors import RequestError
from xvfl_serve.http import model_slot
from xvfl_serve.http.bodies import read_csv
from xvfl_serve.http.infer_v2 import parse_infer
from xvfl_serve.http.metrics import Metrics
from xvfl_serve.http.settings import Settings
from xvfl_serve.http.size_limits import SMALL, SMALL_TOTAL, CellSemaphore, SizeLimits
from xvfl_serve.json_size import load_json
from xvfl_serve.onnx_check import OPERATORS, check_self_contained
from xvfl_serve.release_state import read_release_state

LIMITS = SizeLimits(10_000, 2_000_000, 2**24, max_cells=2_000_000)
AGE = {"name": "age", "shape": [1], "datatype": "FP64", "data": [40.0]}


@pytest.mark.parametrize("shape", [[10_000, 0], [10_000, 1, 0]])
def test_tensors_without_elements_have_no_rows(bundles: Path, shape: list[int]) -> None:
    predictor = Predictor.load(bundles / "bank.xvfl")
    empty = {"name": "age", "shape": shape, "datatype": "FP32", "data": []}
    with pytest.raises(RequestError, match="input 'age': expected a shape"):
        parse_infer({"inputs": [empty]}, predictor, LIMITS)
    parse_infer({"inputs": [{**AGE, "shape": [0], "data": []}]}, predictor, LIMITS)


def test_an_output_is_requested_once(bundles: Path) -> None:
    predictor = Predictor.load(bundles / "bank.xvfl")
    wanted = [{"name": "probabilities"}, {"name": "mode"}]
    assert parse_infer({"inputs": [AGE], "outputs": wanted}, predictor, LIMITS)[1] == [
        "probabilities",
        "mode",
    ]
    with pytest.raises(RequestError, match="output 'mode' occurs twice"):
        parse_infer({"inputs": [AGE], "outputs": [*wanted, wanted[1]]}, predictor, LIMITS)


def test_texts_and_names_count_by_their_memory() -> None:
    text = json.dumps({"rows": ["\U0001f600" + "x" * 10**6]}, ensure_ascii=False).encode()
    # Four bytes a character, in the decoded body and in its value.
    assert LIMITS.check_json(text) >= 8 * 10**6 / 100
    names = json.dumps({f"{i:x}": 0 for i in range(10**5)}).encode()
    tracemalloc.start()
    json.loads(names.decode())
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert LIMITS.check_json(names) >= taken / 100


def test_small_requests_share_a_limit() -> None:
    async def hold_all() -> None:
        room, small = CellSemaphore(10**6, 30.0), SMALL_TOTAL // SMALL
        async with AsyncExitStack() as stack:
            for _ in range(small):
                await stack.enter_async_context(room.hold(SMALL))
            with pytest.raises(RequestError, match="busy") as error:
                await stack.enter_async_context(room.hold(1))
            assert error.value.status == 503
            await stack.enter_async_context(room.hold(10**6))
        async with room.hold(1):
            pass

    asyncio.run(hold_all())


def test_columns_of_an_upload_are_counted_before_they_are_compared() -> None:
    with pytest.raises(RequestError, match="expected at most 64 columns") as error:
        read_csv(b"a," * 1000 + b"a\n", LIMITS)
    assert error.value.status == 413


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-16-le"])
def test_json_is_utf_8(encoding: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        load_json(json.dumps(["a"]).encode(encoding), 100, 8)
    path = tmp_path / "release.json"
    path.write_bytes(("[" * 20_000 + "]" * 20_000).encode(encoding))
    with pytest.raises(BundleError, match="check --release"):
        read_release_state(path)
    assert load_json(json.dumps(["a"]).encode("utf-8-sig"), 100, 8) == ["a"]


def test_categories_take_memory_by_their_number() -> None:
    values = tuple(f"v{i}" for i in range(3000))
    column, notes = CategoryColumn("job", values, "str"), []  # type: ignore[var-annotated]
    tracemalloc.start()
    found = column.encode_cell("v7", MissingCells.of([]), notes)
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert list(found or ()) == [float(i == 7) for i in range(3000)] and not notes
    assert taken < 2 * 10**6


def with_encoder(given: Bundle, **fields: Any) -> Bundle:
    """Change fields of the only encoder."""
    data = {**given.read_json("encoders/0.json"), **fields}
    return replace(given, files={**given.files, "encoders/0.json": json.dumps(data).encode()})


def test_images_have_a_limit(bundles: Path) -> None:
    given = read_bundle(bundles / "images.xvfl")
    assert build_encoder(given.read_json("encoders/0.json")).names == ["image"]
    with pytest.raises(BundleError, match="images: expected at most 1048576 numbers"):
        Predictor(with_encoder(given, shape=[1, 20_000, 20_000]))


def test_parties_have_encoders_of_their_own(bundles: Path, monkeypatch: Any) -> None:
    given = read_bundle(bundles / "bank.xvfl")
    (party,) = given.manifest["parties"]
    many = [{**party, "name": f"p{i}"} for i in range(2)]
    with pytest.raises(BundleError, match="an encoder of its own, got 2 with 1"):
        Predictor(replace(given, manifest={**given.manifest, "parties": [party, *many[1:]]}))
    own = [{**each, "encoder": f"encoders/{i}.json"} for i, each in enumerate(many * 51)]
    with pytest.raises(BundleError, match="at most 100, "):
        Predictor(replace(given, manifest={**given.manifest, "parties": own}))
    monkeypatch.setattr("xvfl_serve.predictor.MAX_CELLS", 10)
    with pytest.raises(BundleError, match="encoders: expected at most 10 values in all"):
        Predictor(given)


@pytest.mark.parametrize("name", ["bank", "both", "images"])
def test_exported_operators_are_allowed(bundles: Path, name: str) -> None:
    # test_equals_torch loads bundles of every kind of model.
    files = read_bundle(bundles / f"{name}.xvfl").files
    nets = [onnx.load_from_string(files[each]) for each in files if each.endswith(".onnx")]
    found = {node.op_type for each in nets for node in each.graph.node}
    assert found and found <= OPERATORS
    assert not OPERATORS & {"Loop", "If", "Scan", "SequenceMap"}


def test_other_operators_are_refused() -> None:
    def net(**fields: Any) -> bytes:
        node = helper.make_node(inputs=["x"], outputs=["y"], **fields)
        return onnx.ModelProto(graph=onnx.GraphProto(node=[node])).SerializeToString()

    check_self_contained(net(op_type="Relu", domain="ai.onnx"))
    with pytest.raises(ValueError, match="the operator 'Loop', which `xvfl export`"):
        check_self_contained(net(op_type="Loop"))
    with pytest.raises(ValueError, match="the domain 'com.microsoft', which"):
        check_self_contained(net(op_type="Relu", domain="com.microsoft"))
    inner = onnx.GraphProto(node=[helper.make_node("Scan", ["x"], ["y"])])
    with pytest.raises(ValueError, match="the operator 'Scan'"):
        check_self_contained(net(op_type="Relu", body=inner))


def test_a_bundle_that_loads_for_long_is_reported(
    bundles: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    predictor = Predictor.load(bundles / "bank.xvfl")

    def load_slowly(*args: Any) -> Predictor:
        deadline = time.monotonic() + 60
        while not caplog.records and time.monotonic() < deadline:
            time.sleep(0.01)
        return predictor

    monkeypatch.setattr(model_slot, "SLOW_LOAD_S", 0.01)
    monkeypatch.setattr(Predictor, "load", load_slowly)
    with caplog.at_level(logging.ERROR, "xvfl_serve"):
        model_slot.ModelSlot(Settings(bundles / "bank.xvfl", "bank"), Metrics())
    assert "bank.xvfl is still being loaded" in caplog.text


def test_unverified_bundles_have_a_smaller_limit(
    bundles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_signing_key(RunDir(tmp_path / "own").create())
    key, public = (tmp_path / "own" / f"release.{end}" for end in ("key", "pub"))
    path = tmp_path / "signed.xvfl"
    path.write_bytes(pack(read_bundle(bundles / "bank.xvfl"), key))
    monkeypatch.setattr(bundle, "MAX_UNVERIFIED", 1000)
    with pytest.raises(BundleError, match="at most 1000 bytes unpacked.*--verify"):
        read_bundle(path)
    assert read_bundle(path, public).files == unpack(path.read_bytes()).files
