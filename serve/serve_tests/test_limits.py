"""Limits of requests and bundles, piece by piece."""

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from xvfl_serve import BundleError, Predictor, read_bundle
from xvfl_serve.bundle import Bundle, pack, unpack
from xvfl_serve.errors import RequestError
from xvfl_serve.http.settings import Settings
from xvfl_serve.http.size_limits import SizeLimits
from xvfl_serve.json_size import FIELD_CELLS, OBJECT_CELLS, load_json, measure_json
from xvfl_serve.onnx_check import check_self_contained
from xvfl_serve.release_state import ReleaseState, Revocation

JSON = st.recursive(
    st.none() | st.floats(allow_nan=False) | st.text('ab"\\[{]},:'),
    lambda each: st.lists(each) | st.dictionaries(st.text('a"\\[{,'), each),
)


def count(value: Any) -> tuple[int, int]:
    """Count cells and depth of decoded JSON: the slow twin of `measure_json`."""
    if not isinstance(value, dict | list):
        return 0, 0
    parts = list(value.values()) if isinstance(value, dict) else value
    below = [count(each) for each in parts]
    own = OBJECT_CELLS if isinstance(value, dict) else 1
    commas = max(0, len(parts) - 1)
    names = (FIELD_CELLS - 1) * len(parts) if isinstance(value, dict) else 0
    return own + commas + names + sum(n for n, _ in below), 1 + max(
        [0, *(depth for _, depth in below)]
    )


@given(JSON)
def test_the_size_of_json_is_that_of_its_values(value: Any) -> None:
    text = json.dumps([value] + [[]] * 20).encode()
    size, (cells, depth) = measure_json(text), count([value] + [[]] * 20)
    assert (size.cells, size.depth) == (cells + 1, depth)
    short = measure_json(json.dumps(value).encode())
    assert short.cells > count(value)[0] and short.depth >= count(value)[1]


def test_json_is_measured_across_chunks() -> None:
    texts = ['"[{,' * 300_000, "\\" * 700_001, "x"]
    size = measure_json(json.dumps([texts, [[1] * 10] * 9]).encode())
    assert (size.cells, size.depth) == (1 + 1 + 1 + 1 + 2 + 1 + 8 + 90, 3)
    with pytest.raises(ValueError, match="nested 9 deep, expected at most 8"):
        load_json(b"[" * 9 + b"]" * 9, 100, 8)
    with pytest.raises(ValueError, match="of 101 values, expected at most 100"):
        load_json(json.dumps([0] * 100).encode(), 100, 8)


def external() -> onnx.TensorProto:
    """Return a tensor whose data lie in another file."""
    tensor = onnx.TensorProto(name="w", data_type=1, dims=[4])
    tensor.external_data.add(key="location", value="../x")
    return tensor


def graph(*nodes: onnx.NodeProto, **fields: Any) -> onnx.GraphProto:
    """Return a graph with some fields set."""
    return onnx.GraphProto(name="g", node=nodes, **fields)


def node(**attributes: Any) -> onnx.NodeProto:
    """Return a node with attributes."""
    return helper.make_node("Constant", [], ["y"], **attributes)


SPARSE = onnx.SparseTensorProto(values=external(), dims=[4])
MODELS = {
    "initializer": onnx.ModelProto(graph=graph(initializer=[external()])),
    "sparse": onnx.ModelProto(graph=graph(sparse_initializer=[SPARSE])),
    "constant": onnx.ModelProto(graph=graph(node(value=external()))),
    "constants": onnx.ModelProto(graph=graph(node(value=[external()]))),
    "sparse constant": onnx.ModelProto(graph=graph(node(sparse_value=SPARSE))),
    "branch": onnx.ModelProto(graph=graph(node(then_branch=graph(node(value=external()))))),
    "function": onnx.ModelProto(
        functions=[onnx.FunctionProto(name="f", node=[node(value=external())])]
    ),
    "training": onnx.ModelProto(
        training_info=[onnx.TrainingInfoProto(algorithm=graph(initializer=[external()]))]
    ),
    "location alone": onnx.ModelProto(
        graph=graph(initializer=[onnx.TensorProto(data_location=onnx.TensorProto.EXTERNAL)])
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_external_data_are_found_everywhere(name: str) -> None:
    with pytest.raises(ValueError, match="external data|has functions"):
        check_self_contained(MODELS[name].SerializeToString())


def test_nets_that_are_no_onnx_file() -> None:
    check_self_contained(graph_without_external_data())
    for data in (b"\xff" * 20, b"\x3a\x7f", b"\x0b", b"\xba\x80\x80\x80\x70\x00"):
        with pytest.raises(ValueError, match="ONNX file"):
            check_self_contained(data)


def graph_without_external_data() -> bytes:
    """Return nets that need no other file."""
    tensor = onnx.TensorProto(name="w", data_type=1, dims=[1], raw_data=bytes(4))
    return onnx.ModelProto(graph=graph(node(value=tensor))).SerializeToString()


def test_a_budget_is_that_of_the_model(bundles: Path) -> None:
    predictor = Predictor.load(bundles / "images.xvfl")
    limits = SizeLimits.of_model(Settings(Path(), "m", max_rows=3, max_cells=500), predictor)
    rows = [{"image": [[0.5] * 4] * 8}] * 3
    assert limits.check_json(json.dumps({"rows": rows}).encode()) <= limits.cells
    with pytest.raises(RequestError, match="expected at most 500 values"):
        limits.check_json(json.dumps({"rows": rows * 20}).encode())
    assert limits.check_answers(3, completed=True) <= 500
    with pytest.raises(RequestError, match="with answers of this size"):
        limits.check_answers(100, completed=True)


def test_a_file_that_occurs_twice_is_rejected(bundles: Path) -> None:
    from tests.security.test_serve_bundles import MARK, seal

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, contents in (("bundle.json", "{}"), ("bundle.jsom", "[]")):
            archive.writestr(name, contents)
        archive.comment = MARK + b"0" * 64
    changed = io.BytesIO(buffer.getvalue().replace(b"bundle.jsom", b"bundle.json"))
    with pytest.raises(BundleError, match="occurs twice"):
        unpack(seal(changed))


def test_sizes_are_those_of_the_manifest(bundles: Path) -> None:
    bundle = read_bundle(bundles / "bank.xvfl")
    assert bundle.manifest["sizes"] == {name: len(each) for name, each in bundle.files.items()}
    manifest = {each: bundle.manifest[each] for each in bundle.manifest if each != "sizes"}
    assert unpack(pack(Bundle(manifest, bundle.files))).files == bundle.files


def test_what_was_revoked_stays_revoked() -> None:
    def bundle(number: Any) -> Bundle:
        return Bundle({"training": {"release": number}}, {})

    before = ReleaseState.from_dict({"number": 6, "revoked": "wrong labels"})
    assert before == ReleaseState(6, Revocation(6, "wrong labels"))
    # A file of version 0.3.0 does not tell what was revoked before.
    state = ReleaseState.from_dict({"number": 8, "revoked": None}).after(before)
    assert "revoked release 5 (wrong labels)" in state.revoked(bundle(5), "b")
    assert not state.revoked(bundle(7), "b")
    with pytest.raises(BundleError, match="release 8 replaced release 7"):
        state.check(bundle(7), "b")
    for wrong in ("8", True, None):
        with pytest.raises(BundleError, match="release"):
            state.check(bundle(wrong), "b")
