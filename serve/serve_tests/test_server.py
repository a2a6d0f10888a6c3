"""The server: answers, wrong requests, tokens, limits, replacement of the bundle."""

import io
import json
import os
import shutil
import signal
from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from serve_tests.server import Server, serving, wait_until
from tests.wire.transport_helpers import issue_certificates
from xvfl import XVFLClassifier
from xvfl.config import TableOptions
from xvfl.model.export.bundle_export import build_bundle
from xvfl_serve import BundleError, Predictor, ServeError, read_bundle
from xvfl_serve.bundle import pack, unpack
from xvfl_serve.command import main
from xvfl_serve.errors import RequestError
from xvfl_serve.http.bodies import parse_json, read_csv
from xvfl_serve.http.size_limits import SizeLimits

CSV = {"Content-Type": "text/csv"}


@pytest.fixture(scope="module")
def server(bundles: Path) -> Iterator[Server]:
    with serving(bundles / "bank.xvfl", "--max-rows", "50", "--max-bytes", "20000") as running:
        yield running


@pytest.fixture(scope="module")
def joint(bundles: Path) -> Iterator[Server]:
    with serving(bundles / "both.xvfl") as running:
        yield running


def test_a_row_with_fields_left_out(server: Server, bundles: Path) -> None:
    answer = server.predict({"age": 40, "job": None})
    assert answer.status == 200
    found = answer.json()
    expected = Predictor.load(bundles / "bank.xvfl")
    assert found["bundle"] == expected.bundle.digest
    assert found["predictions"] == expected.predict([{"age": 40, "job": None}])
    (prediction,) = found["predictions"]
    assert sum(prediction["probabilities"].values()) == pytest.approx(1)
    assert prediction["mode"] == "local" and prediction["parties"] == ["bank"]
    assert prediction["completed"] == pytest.approx(2 / 3)
    assert prediction["notes"] == ["bank: not given: balance, counts as missing"]


def test_completed_features_and_importance_on_request(server: Server) -> None:
    answer = server.predict({"age": 40}, completed=True, importance=True)
    (prediction,) = answer.json()["predictions"]
    assert set(prediction["completed_features"]["bank"]) == {"balance", "job"}
    assert set(prediction["importance"]["bank"]) == {"age"}


def test_nothing_observed_is_the_flagged_prior(server: Server) -> None:
    every = "bank: not given: age, balance, job, count as missing"
    given = {"age": None, "balance": None, "job": ""}
    for row, notes in (({}, [every]), (given, [])):
        (prediction,) = server.predict(row).json()["predictions"]
        assert prediction["mode"] == "prior" and prediction["parties"] == []
        assert prediction["notes"] == [*notes, "not observed by any party: class prior"]


def test_all_modes(joint: Server) -> None:
    both = {"bank": {"age": 40}, "shop": {"visits": 3}}
    (prediction,) = joint.predict(both).json()["predictions"]
    assert prediction["mode"] == "collaborative" and prediction["parties"] == ["bank", "shop"]
    assisted = joint.predict(both, mode="assisted", party="bank")
    assert assisted.json()["predictions"][0]["mode"] == "assisted"
    bank = {"age": 40, "balance": None, "job": None}
    alone = joint.predict({"bank": bank}, mode="assisted", party="bank")
    (prediction,) = alone.json()["predictions"]
    assert prediction["mode"] == "local"
    assert prediction["notes"] == ["no peer can assist: local prediction"]
    local = joint.predict({"visits": 3}, mode="local", party="shop")
    assert local.json()["predictions"][0]["parties"] == ["shop"]


WRONG: dict[str, tuple[Any, int, str, str]] = {
    "unknown column": ({"rows": [{"agee": 3}]}, 422, "agee", "did you mean 'age'"),
    "second row": ({"rows": [{}, {"age": "x"}]}, 422, "age", "row 1, column 'age'"),
    "text for a number": ({"rows": [{"age": "old"}]}, 422, "age", "expected a number, got 'old'"),
    "list for a number": ({"rows": [{"age": [1]}]}, 422, "age", "expected a number, got [1]"),
    "list for a category": ({"rows": [{"job": ["cook"]}]}, 422, "job", "expected a text"),
    "huge number": ({"rows": [{"age": 10**400}]}, 422, "age", "finite"),
    "row is a list": ({"rows": [[1, 2]]}, 422, "rows", "(column: value), got list"),
    "rows is an object": ({"rows": {"age": 3}}, 422, "rows", "expected a list"),
    "no rows": ({}, 422, "rows", "expected a list"),
    "unknown field": ({"rows": [], "modus": "local"}, 422, "modus", "did you mean 'mode'"),
    "unknown mode": ({"rows": [], "mode": "magic"}, 422, "mode", "unknown mode 'magic'"),
    "mode is a number": ({"rows": [], "mode": 3}, 422, "mode", "expected a text"),
    "unknown party": ({"rows": [], "party": "shop"}, 422, "party", "unknown party 'shop'"),
    "flag is a text": ({"rows": [], "completed": "yes"}, 422, "completed", "true or false"),
    "too many rows": ({"rows": [{}] * 51}, 413, "rows", "at most 50, got 51"),
    "too many bytes": (b'{"rows": [' + b" " * 30000 + b"]}", 413, "", "at most 20000 bytes"),
    "broken JSON": (b'{"rows": [', 400, "", "broken"),
    "not JSON": (b'{"rows": [{"age": NaN}]}', 400, "", "NaN is not JSON"),
    "not UTF-8": (b'{"rows": "\xff"}', 400, "", "broken"),
    "nested too deeply": (b"[" * 15000, 400, "", "nested too deeply"),
    "a list": (b"[]", 400, "", "expected a JSON object"),
    "nothing": (b" ", 400, "", '"rows": [...]}, got nothing'),
    "a field twice": (b'{"rows": [{"age": 1, "age": 2}]}', 400, "age", "'age' occurs twice"),
    "too many digits": (b'{"rows": [%s]}' % (b"9" * 5000), 400, "", "too many digits"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_requests_name_the_field(server: Server, name: str) -> None:
    body, status, field, text = WRONG[name]
    answer = server.ask("POST", "/predict", body)
    found = answer.json()
    assert (answer.status, found.get("field", "")) == (status, field), found
    assert text in found["error"]
    assert server.predict({"age": 3}).status == 200


def test_one_of_many_fields_twice() -> None:
    names = [*(f"a{i}" for i in range(200_000)), "a5"]
    body = json.dumps({"rows": []})[:-1] + "".join(f', "{name}": 1' for name in names) + "}"
    limits = SizeLimits(10, 10**6, 10**6, 10**6, max_cells=10**6)
    for read, text in ((parse_json, body), (read_csv, ",".join(names))):
        with pytest.raises(RequestError, match="'a5' occurs twice"):
            read(text.encode(), limits)


def test_wrong_requests_of_several_parties(joint: Server) -> None:
    for row, field in (({"bnak": {}}, "bnak"), ({"bank": {"agee": 1}}, "agee")):
        answer = joint.predict(row)
        assert answer.status == 422 and answer.json()["field"] == field
    answer = joint.predict({"age": 3}, mode="local")
    assert answer.status == 422 and answer.json()["field"] == "party"


def test_csv(server: Server, joint: Server) -> None:
    body = b"customer,age,job\r\nc1,40,cook\r\nc2,,astronaut\r\n"
    answer = server.ask("POST", "/predict?id=customer", body, CSV)
    first, second = answer.json()["predictions"]
    assert (first["id"], second["id"]) == ("c1", "c2")
    (expected,) = server.predict({"age": 40, "job": "cook"}).json()["predictions"]
    assert first.pop("probabilities") == pytest.approx(expected.pop("probabilities"))
    assert {"id": "c1", **expected} == first
    note = "not given: balance, counts as missing; unseen category in job"
    assert second["notes"][0] == f"bank: {note}"
    written = server.ask("POST", "/predict?id=customer", body, {**CSV, "Accept": "text/csv"})
    frame = pd.read_csv(io.BytesIO(written.body), keep_default_na=False)
    names = ["id", "prediction", "proba_no", "proba_yes", "mode", "parties", "completed", "notes"]
    assert list(frame) == names
    for mark in (b";", b"\t", b"|"):
        other = server.ask("POST", "/predict?id=customer", body.replace(b",", mark), CSV)
        assert other.json() == answer.json()
    body = b"bank.age,shop.visits\n40,3\n"
    (prediction,) = joint.ask("POST", "/predict", body, CSV).json()["predictions"]
    assert prediction["parties"] == ["bank", "shop"]


@pytest.mark.parametrize(
    ("query", "body", "status", "field"),
    [
        ("", b"", 400, ""),
        ("", b"age,age\n1,2\n", 400, "age"),
        ("", b"age,job\n1\n", 400, ""),
        ("", b"\xff\xfe", 400, ""),
        ("", b"years\n3\n", 422, "years"),
        ("?id=customer", b"age\n3\n", 422, "id"),
        ("?modus=local", b"age\n3\n", 422, "modus"),
        ("?completed=1", b"age\n3\n", 422, "completed"),
        ("?mode=assisted", b"age\n3\n", 422, "mode"),
    ],
)
def test_wrong_csv(server: Server, query: str, body: bytes, status: int, field: str) -> None:
    answer = server.ask("POST", f"/predict{query}", body, CSV)
    assert (answer.status, answer.json().get("field", "")) == (status, field)


def test_requests_that_were_easy_to_misread(server: Server) -> None:
    body = json.dumps({"rows": [{"age": 3}]}).encode()
    answer = server.ask("POST", "/predict?mode=local", body)
    assert answer.status == 422 and answer.json()["field"] == "mode"
    assert server.ask("POST", "/predict", b"\xef\xbb\xbf" + body).status == 200


def test_types_of_parquet_are_read_as_in_training(tmp_path: Path) -> None:
    rng, n = np.random.default_rng(0), 120
    seconds = rng.integers(0, 86_400, n)
    columns = {
        "amount": pa.array([Decimal(f"{x:.2f}") for x in rng.normal(size=n)], pa.decimal128(9, 2)),
        "rate": pa.array([Decimal(["1.50", "2.00"][i % 2]) for i in range(n)]),
        "time": pa.array([(datetime.min + timedelta(seconds=int(x))).time() for x in seconds]),
        "moment": pa.array(seconds * 10**9 + 1, pa.timestamp("ns")),
        "length": pa.array(seconds * 10**9 + 1, pa.duration("ns")),
        "code": pa.array([[b"a", b"b"][i % 2] for i in range(n)]),
    }
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    frame = pd.read_parquet(tmp_path / "rows.parquet")
    options = TableOptions(kinds={"time": "duration", "rate": "category"})
    model = XVFLClassifier(epochs=1, members=1, table_options={"a": options})
    y = pd.Series((seconds % 2).astype(str))
    model.fit({"a": frame, "b": frame[["length"]]}, y)
    (tmp_path / "a.xvfl").write_bytes(build_bundle(model.model_, "a"))
    kind = {"Content-Type": "application/vnd.apache.parquet"}
    with serving(tmp_path / "a.xvfl") as running:
        body = (tmp_path / "rows.parquet").read_bytes()
        answers = running.ask("POST", "/predict", body, kind).json()["predictions"]
    found = [list(each["probabilities"].values()) for each in answers]
    expected = model.predict_proba({"a": frame}, mode="local", party="a")
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert not any(each["notes"] for each in answers)


def test_parquet(server: Server, tmp_path: Path) -> None:
    kind = {"Content-Type": "application/vnd.apache.parquet"}
    frame = pd.DataFrame({"age": [40.0, None], "job": ["cook", None]})
    frame.to_parquet(tmp_path / "rows.parquet", index=False)
    answer = server.ask("POST", "/predict", (tmp_path / "rows.parquet").read_bytes(), kind)
    assert [each["mode"] for each in answer.json()["predictions"]] == ["local", "prior"]
    assert server.ask("POST", "/predict", b"PAR1", kind).status == 400
    assert server.ask("POST", "/predict", b"", {"Content-Type": "text/html"}).status == 415


def test_open_inference_protocol(server: Server, bundles: Path) -> None:
    assert server.ask("GET", "/v2/health/live").status == 200
    assert server.ask("GET", "/v2/health/ready").status == 200
    assert server.ask("GET", "/v2/models/bank/ready").status == 200
    assert server.ask("GET", "/v2").json()["name"] == "xvfl-serve"
    inputs = server.ask("GET", "/v2/models/bank").json()["inputs"]
    assert {"name": "age", "datatype": "FP64", "shape": [-1]} in inputs
    assert {"name": "job.missing", "datatype": "BOOL", "shape": [-1]} in inputs
    request = {
        "id": "r1",
        "inputs": [
            {"name": "age", "shape": [3], "datatype": "FP64", "data": [40, 0, 31.5]},
            {"name": "age.missing", "shape": [3], "datatype": "BOOL", "data": [False, True, False]},
            {
                "name": "job",
                "shape": [3, 1],
                "datatype": "BYTES",
                "data": [["cook"], ["cook"], [""]],
            },
        ],
    }
    answer = server.ask("POST", "/v2/models/bank/infer", request).json()
    assert answer["id"] == "r1" and answer["model_name"] == "bank"
    outputs = {each["name"]: each for each in answer["outputs"]}
    rows = [{"age": 40, "job": "cook"}, {"job": "cook"}, {"age": 31.5}]
    expected = Predictor.load(bundles / "bank.xvfl").predict(rows)
    proba = np.array([list(each["probabilities"].values()) for each in expected])
    assert outputs["probabilities"]["shape"] == [3, 2]
    np.testing.assert_allclose(outputs["probabilities"]["data"], proba.ravel(), atol=1e-6)
    assert outputs["prediction"]["data"] == [each["prediction"] for each in expected]
    version = server.ask("GET", "/v2/models/bank").json()["versions"][0]
    path = f"/v2/models/bank/versions/{version}/infer"
    few = server.ask("POST", path, {**request, "outputs": [{"name": "mode"}]}).json()
    assert [each["name"] for each in few["outputs"]] == ["mode"]
    assert server.ask("GET", "/v2/models/shop").status == 404
    assert server.ask("GET", "/v2/models/bank/versions/9").status == 404


def tensor(**changes: Any) -> dict[str, Any]:
    """Return a tensor with some entries changed."""
    return {"name": "age", "shape": [1], "datatype": "FP64", "data": [1.0], **changes}


@pytest.mark.parametrize(
    ("inputs", "field"),
    [
        ([], "inputs"),
        ([tensor(name="years")], "years"),
        ([tensor(datatype="FP99")], "age"),
        ([tensor(shape=[2])], "age"),
        ([tensor(shape=[-1])], "age"),
        ([tensor(data=["x"])], "age"),
        ([tensor(data=5)], "age"),
        ([tensor(), tensor()], "age"),
        ([tensor(), tensor(name="balance", shape=[2], data=[1, 2])], "inputs"),
        ([tensor(), tensor(name="age.missing")], "age.missing"),
        ([tensor(name=3)], "inputs"),
    ],
)
def test_wrong_tensors(server: Server, inputs: list[Any], field: str) -> None:
    answer = server.ask("POST", "/v2/models/bank/infer", {"inputs": inputs})
    assert (answer.status, answer.json()["field"]) == (422, field)


def test_images(bundles: Path) -> None:
    predictor = Predictor.load(bundles / "images.xvfl")
    image = np.arange(32.0).reshape(8, 4) / 2
    gaps = image > 10
    with_gaps = [[None if cell > 10 else cell for cell in line] for line in image.tolist()]
    (expected,) = predictor.predict([{"image": with_gaps}])
    with serving(bundles / "images.xvfl") as server:
        (found,) = server.predict({"image": with_gaps}).json()["predictions"]
        assert found == expected
        inputs = [
            {"name": "image", "shape": [1, 8, 4], "datatype": "FP32", "data": image.tolist()},
            {
                "name": "image.missing",
                "shape": [1, 8, 4],
                "datatype": "BOOL",
                "data": gaps.tolist(),
            },
        ]
        answer = server.ask("POST", "/v2/models/images/infer", {"inputs": inputs}).json()
        (proba,) = [each for each in answer["outputs"] if each["name"] == "probabilities"]
        np.testing.assert_allclose(proba["data"], list(expected["probabilities"].values()))
        wrong = server.predict({"image": [[1.0]]})
        assert wrong.status == 422 and wrong.json()["field"] == "image"
        wrong = server.predict({"image": None}, importance=True)
        assert wrong.status == 422 and wrong.json()["field"] == "importance"


def test_pages_and_metrics(server: Server) -> None:
    server.predict({"age": 10**6, "job": "astronaut"})
    page = server.ask("GET", "/docs").body.decode()
    assert "POST /predict" in page and "http" not in page.replace("http://localhost", "")
    assert server.ask("GET", "/openapi.json").json()["openapi"] == "3.1.0"
    assert server.ask("GET", "/card").body.startswith(b"# Model card")
    metrics = server.ask("GET", "/metrics").body.decode()
    assert 'xvfl_unusual_cells_total{column="job",kind="unseen",party="bank"}' in metrics
    assert 'xvfl_unusual_cells_total{column="age",kind="range",party="bank"}' in metrics
    assert 'xvfl_missing_cells_total{column="balance",party="bank"}' in metrics
    assert server.ask("GET", "/predict").status == 405
    missing = server.ask("GET", "/nowhere")
    assert missing.status == 404 and "/docs" in missing.json()["error"]


def test_tokens(bundles: Path, tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("first\nsecond\n")
    with serving(bundles / "bank.xvfl", "--tokens", str(tmp_path / "tokens")) as server:
        for headers in ({}, {"Authorization": "Bearer third"}, {"Authorization": "Basic first"}):
            answer = server.ask("POST", "/predict", {"rows": [{}]}, headers)
            assert answer.status == 401 and answer.json()["field"] == "authorization"
            assert answer.headers["www-authenticate"].startswith("Basic")
        for token in ("first", "second"):
            headers = {"Authorization": f"Bearer {token}"}
            assert server.ask("POST", "/predict", {"rows": [{}]}, headers).status == 200
        assert server.ask("GET", "/metrics").status == 401
        assert server.ask("GET", "/v2/health/live").status == 200


def test_mutual_tls(bundles: Path, tmp_path: Path) -> None:
    import http.client
    import ssl

    folder = issue_certificates(tmp_path / "ca", ["p0"])
    find = {path.name: path for path in folder.rglob("*") if path.is_file()}
    cert, key, ca = (find[name] for name in ("coordinator.crt", "coordinator.key", "ca.crt"))
    options = ["--tls-cert", str(cert), "--tls-key", str(key), "--client-ca", str(ca)]
    with serving(bundles / "bank.xvfl", *options) as server:
        context = ssl.create_default_context(cafile=str(ca))
        context.check_hostname = False
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
            _https(server.port, context)
        context.load_cert_chain(find["p0.crt"], find["p0.key"])
        assert _https(server.port, context) == 200


def _https(port: int, context: Any) -> int:
    import http.client

    connection = http.client.HTTPSConnection("localhost", port, context=context, timeout=30)
    try:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/predict", json.dumps({"rows": [{}]}), headers)
        return connection.getresponse().status
    finally:
        connection.close()


def test_replacing_the_bundle(bundles: Path, tmp_path: Path) -> None:
    path = tmp_path / "served.xvfl"
    shutil.copy(bundles / "bank.xvfl", path)
    with serving(path) as server:
        first = server.predict({"age": 40}).json()

        def metrics() -> str:
            return server.ask("GET", "/metrics").body.decode()

        (tmp_path / "new").write_bytes(b"no bundle")
        os.replace(tmp_path / "new", path)
        wait_until(lambda: 'xvfl_reloads_total{result="rejected"} 1' in metrics())
        assert server.predict({"age": 40}).json() == first
        shutil.copy(bundles / "other.xvfl", tmp_path / "new")
        os.replace(tmp_path / "new", path)
        wait_until(lambda: 'xvfl_reloads_total{result="loaded"} 1' in metrics())
        assert server.predict({"age": 40}).json()["bundle"] != first["bundle"]
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: 'xvfl_reloads_total{result="loaded"} 2' in metrics())


def test_stops_after_the_requests_in_progress(bundles: Path) -> None:
    with serving(bundles / "bank.xvfl") as server:
        assert server.predict({}).status == 200
        server.process.terminate()
        assert server.process.wait(60) in (0, -signal.SIGTERM)


def test_every_changed_byte_is_found(bundles: Path) -> None:
    data = (bundles / "bank.xvfl").read_bytes()
    rng = np.random.default_rng(0)
    for at in [0, 20, len(data) - 1, len(data) - 80, *rng.integers(0, len(data), 40).tolist()]:
        changed = bytearray(data)
        changed[at] ^= 1
        with pytest.raises(BundleError, match="checksum"):
            unpack(bytes(changed))
    with pytest.raises(BundleError, match="checksum"):
        unpack(data[:-1])


def test_another_format_is_refused(bundles: Path) -> None:
    bundle = read_bundle(bundles / "bank.xvfl")
    manifest = {**bundle.manifest, "format": 2, "version": "9.9"}
    with pytest.raises(BundleError, match=r"xvfl 9.9 in bundle format 2.*reads format 1"):
        unpack(pack(type(bundle)(manifest, bundle.files)))
    manifest = {**bundle.manifest, "task": {"kind": "ranking"}}
    with pytest.raises(BundleError, match="unknown task 'ranking'"):
        Predictor(unpack(pack(type(bundle)(manifest, bundle.files))))


def test_signatures(bundles: Path, tmp_path: Path) -> None:
    from xvfl.model.run_dir import RunDir
    from xvfl.service.release import load_signing_key

    for name in ("own", "foreign"):
        load_signing_key(RunDir(tmp_path / name).create())
    bundle = read_bundle(bundles / "bank.xvfl")
    signed = tmp_path / "signed.xvfl"
    signed.write_bytes(pack(bundle, tmp_path / "own" / "release.key"))
    assert read_bundle(signed, tmp_path / "own" / "release.pub").manifest == bundle.manifest
    with pytest.raises(BundleError, match="not signed by"):
        read_bundle(signed, tmp_path / "foreign" / "release.pub")
    with pytest.raises(BundleError, match="expected a signed bundle"):
        read_bundle(bundles / "bank.xvfl", tmp_path / "own" / "release.pub")
    with pytest.raises(ServeError, match="cannot be read as a public key"):
        read_bundle(signed, tmp_path / "own" / "release.key")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["none.xvfl"], "cannot be read"),
        (["{bundle}", "--host", "0.0.0.0"], "without a token"),
        (["{bundle}", "--tokens", "none"], "cannot be read"),
        (["{bundle}", "--client-ca", "none"], "need --tls-cert"),
        (["{bundle}", "--host", "203.0.113.1", "--insecure"], "cannot listen"),
    ],
)
def test_wrong_options(
    bundles: Path, options: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [each.format(bundle=bundles / "bank.xvfl") for each in options]
    with pytest.raises(SystemExit) as ended:
        main(given)
    assert ended.value.code == 2
    assert text in capsys.readouterr().err
