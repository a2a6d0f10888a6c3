"""Bundles made to harm a server: rejected, while the current bundle is served and watched."""

import hashlib
import io
import json
import os
import signal
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace as change
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.security.serve_process import MAX_PEAK, attacked, replace, started, wait_until
from xvfl.model.run_dir import RunDir
from xvfl.service.release import load_signing_key
from xvfl_serve import Bundle, Predictor, ServeError, read_bundle
from xvfl_serve.bundle import pack, unpack

MARK = b"sha256:"


def seal(buffer: io.BytesIO) -> bytes:
    """Append the checksum to a zip file with an empty comment of its length."""
    body = buffer.getvalue()[: -len(MARK) - 64]
    return body + MARK + hashlib.sha256(body).hexdigest().encode()


def zip_bomb(packed: bytes, size: int, declared: int | None = None) -> bytes:
    """Add a file of zeros to a bundle; it may declare another size."""
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(packed)) as before,
        zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
    ):
        with archive.open("zeros.bin", "w") as entry:
            for _ in range(size // 2**20):
                entry.write(bytes(2**20))
        for name in before.namelist():
            archive.writestr(name, before.read(name))
        if declared is not None:
            archive.getinfo("zeros.bin").file_size = declared
        archive.comment = MARK + b"0" * 64
    return seal(buffer)


def with_file(bundle: Bundle, name: str, data: bytes) -> Bundle:
    """Replace a file of a bundle."""
    return change(bundle, files={**bundle.files, name: data})


def net_of(bundle: Bundle) -> tuple[str, onnx.ModelProto]:
    """Return the nets of a bundle's only output."""
    name = bundle.manifest["outputs"][0]["graph"]
    return name, onnx.load_from_string(bundle.files[name])


def deep_json(bundle: Bundle) -> Bundle:
    """A bundle whose encoder is nested ten thousand deep."""
    return with_file(bundle, "encoders/0.json", b"[" * 10_000 + b"]" * 10_000)


def other_results(bundle: Bundle) -> Bundle:
    """A bundle whose nets load and cannot be run."""
    name, nets = net_of(bundle)
    before = nets.graph.output[0].name
    for each in nets.graph.node:
        each.output[:] = ["nothing" if output == before else output for output in each.output]
        each.input[:] = ["nothing" if given == before else given for given in each.input]
    nets.graph.output[0].name = "nothing"
    return with_file(bundle, name, nets.SerializeToString())


def wrong_type(bundle: Bundle) -> Bundle:
    """A bundle whose threshold is no number."""
    parties = [{**each, "full_threshold": "x"} for each in bundle.manifest["parties"]]
    return change(bundle, manifest={**bundle.manifest, "parties": parties})


def no_nets(bundle: Bundle) -> Bundle:
    """A bundle with a file that ONNX Runtime rejects."""
    return with_file(bundle, net_of(bundle)[0], b"\xff" * 100)


@pytest.mark.slow
@pytest.mark.parametrize("harm", [deep_json, other_results, wrong_type, no_nets])
def test_the_watcher_survives_a_bundle(
    bank_bundle: Path, tmp_path: Path, harm: Callable[[Bundle], Bundle]
) -> None:
    path, bundle = tmp_path / "bank.xvfl", read_bundle(bank_bundle)
    path.write_bytes(bank_bundle.read_bytes())
    other = pack(change(bundle, manifest={**bundle.manifest, "version": "other"}))
    with attacked(path) as server:
        replace(path, pack(harm(bundle)))
        wait_until(lambda: 'result="rejected"} 1' in server.metrics())
        assert server.predict(age=40)[1]["bundle"] == bundle.digest
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: 'result="rejected"} 2' in server.metrics())
        replace(path, other)
        wait_until(lambda: server.predict(age=40)[1]["bundle"] != bundle.digest)


def release(bundle: Bundle, number: int) -> bytes:
    """Pack a bundle as one of a release."""
    training = {**bundle.manifest["training"], "release": number}
    return pack(change(bundle, manifest={**bundle.manifest, "training": training}))


def state(number: int, revoked: str | None = None, **others: Any) -> dict[str, Any]:
    """Return the contents of release.json."""
    return {"number": number, "run": "r", "created": "", "revoked": revoked, "digest": "", **others}


@pytest.mark.slow
@pytest.mark.parametrize(
    "harmed",
    [
        pytest.param(False, id=""),
        pytest.param(True, id="after a harmful bundle", marks=pytest.mark.slow),
    ],
)
def test_a_revoked_bundle_never_serves_again(
    bank_bundle: Path, tmp_path: Path, harmed: bool
) -> None:
    path, record, bundle = (
        tmp_path / "bank.xvfl",
        tmp_path / "release.json",
        read_bundle(bank_bundle),
    )
    path.write_bytes(release(bundle, 5))
    replace(record, state(5))
    with attacked(path, "--release", str(record)) as server:
        assert server.predict(age=40)[0] == 200
        if harmed:
            replace(path, pack(deep_json(bundle)))
            wait_until(lambda: 'result="rejected"} 1' in server.metrics())
        replace(record, state(6, "wrong labels"))
        wait_until(lambda: server.predict(age=40)[0] == 410)
        replace(record, state(7))
        for _ in range(5):
            time.sleep(1)
            status, answer = server.predict(age=40)
            assert status == 410 and "wrong labels" in answer["error"]
        replace(path, release(bundle, 5))
        wait_until(lambda: f'result="rejected"}} {1 + harmed}' in server.metrics())
        assert server.predict(age=40)[0] == 410
        replace(path, release(bundle, 7))
        wait_until(lambda: server.predict(age=40)[0] == 200)


@pytest.mark.slow
def test_a_revocation_does_not_wait_for_a_bundle(bank_bundle: Path, tmp_path: Path) -> None:
    path, record = tmp_path / "bank.xvfl", tmp_path / "release.json"
    path.write_bytes(release(read_bundle(bank_bundle), 5))
    replace(record, state(5))
    os.mkfifo(tmp_path / "pipe")
    with attacked(path, "--release", str(record)) as server:
        # To read from a pipe takes until somebody writes to it.
        os.replace(tmp_path / "pipe", path)
        time.sleep(2)
        replace(record, state(6, "wrong labels"))
        wait_until(lambda: server.predict(age=40)[0] == 410)


@pytest.mark.parametrize(
    ("signed", "declared"),
    [
        (True, None),
        pytest.param(True, 1000, marks=pytest.mark.slow),
        pytest.param(False, None, marks=pytest.mark.slow),
        pytest.param(False, 1000, marks=pytest.mark.slow),
    ],
)
def test_a_zip_bomb_is_not_unpacked(
    bank_bundle: Path, tmp_path: Path, signed: bool, declared: int | None
) -> None:
    path, bundle = tmp_path / "bank.xvfl", read_bundle(bank_bundle)
    load_signing_key(RunDir(tmp_path / "own").create())
    own = pack(bundle, tmp_path / "own" / "release.key")
    path.write_bytes(own)
    options = ["--verify", str(tmp_path / "own" / "release.pub")] if signed else []
    bomb = zip_bomb(own, 800 * 2**20, declared)
    assert len(bomb) < 6 * 10**6
    with attacked(path, *options) as server, server.answering_others() as others:
        replace(path, bomb)
        wait_until(lambda: 'result="rejected"} 1' in server.metrics())
        print(f"{len(bomb)} bytes, peak {server.peak / 1e6:.0f} MB")
        assert server.peak < MAX_PEAK
        assert server.predict(age=40)[1]["bundle"] == unpack(own).digest
    assert others and set(others) == {200}


@pytest.mark.slow
def test_json_in_a_bundle_does_not_take_the_memory(bank_bundle: Path, tmp_path: Path) -> None:
    path, bundle = tmp_path / "bank.xvfl", read_bundle(bank_bundle)
    path.write_bytes(bank_bundle.read_bytes())
    values = np.random.default_rng(0).bytes(2 * 10**6).hex().encode()
    harmful = with_file(bundle, "encoders/0.json", b"[" + b"[]," * 20_000_000 + b"[]]")
    with attacked(path) as server:
        replace(path, pack(with_file(harmful, "values", values)))
        wait_until(lambda: 'result="rejected"} 1' in server.metrics())
        assert server.peak < MAX_PEAK
        assert server.predict(age=40)[0] == 200


@pytest.mark.slow
@pytest.mark.parametrize(("size", "result"), [(240 * 2**20, "rejected"), (60 * 2**20, "loaded")])
def test_large_nets_do_not_take_the_memory(
    bank_bundle: Path, tmp_path: Path, size: int, result: str
) -> None:
    path, bundle = tmp_path / "bank.xvfl", read_bundle(bank_bundle)
    path.write_bytes(bank_bundle.read_bytes())
    name, nets = net_of(bundle)
    graph, before, width = nets.graph, nets.graph.output[0].name, int((size // 4) ** 0.5)
    for each in graph.node:
        each.output[:] = ["small" if output == before else output for output in each.output]
    for number, shape in enumerate([(2, width), (width, width), (width, 2)]):
        weights = onnx.numpy_helper.from_array(np.zeros(shape, np.float32), f"large.{number}")
        graph.initializer.append(weights)
    steps = ["small", "large a", "large b", before]
    for number in range(3):
        given = [steps[number], f"large.{number}"]
        graph.node.append(onnx.helper.make_node("MatMul", given, [steps[number + 1]]))
    harmful = with_file(bundle, name, nets.SerializeToString())
    values = np.random.default_rng(0).bytes(size // 80)
    with attacked(path) as server:
        replace(path, pack(with_file(harmful, "values", values)))
        wait_until(lambda: f'result="{result}"}} 1' in server.metrics())
        print(f"peak {server.peak / 1e6:.0f} MB")
        assert server.peak < MAX_PEAK
        assert server.predict(age=40)[0] == 200


def test_external_data_of_nets_are_refused(bank_bundle: Path, tmp_path: Path) -> None:
    bundle = read_bundle(bank_bundle)
    name, nets = net_of(bundle)
    tensor = next(each for each in nets.graph.initializer if len(each.raw_data) > 100)
    (tmp_path / "secret").write_bytes(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="secret")
    harmful = pack(with_file(bundle, name, nets.SerializeToString()))
    (tmp_path / "bank.xvfl").write_bytes(harmful)
    with started(tmp_path / "bank.xvfl", cwd=tmp_path) as server:
        out, errors = server.process.stdout, server.process.stderr
        assert out is not None and errors is not None
        assert not out.readline(), "the server reads a file outside the bundle"
        (line,) = errors.read().splitlines()
        assert "external data" in line and server.process.wait(60) == 2


def mutate(value: Any, rng: np.random.Generator) -> Any:
    """Replace one part of a JSON value by another one."""
    if isinstance(value, dict | list) and value and rng.random() < 0.85:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = keys[rng.integers(len(keys))]
        changed = value.copy()
        if rng.random() < 0.1:
            del changed[key]
        else:
            changed[key] = mutate(value[key], rng)
        return changed
    wrong = [None, -1, 1e308, "x", "", [], {}, [[]], True, 10**30, {"a": 1}, "\ud800"]
    return wrong[rng.integers(len(wrong))]


@pytest.mark.parametrize("count", [25, pytest.param(300, marks=pytest.mark.slow)])
def test_every_error_of_the_loader_is_one_message(bank_bundle: Path, count: int) -> None:
    bundle, rng = read_bundle(bank_bundle), np.random.default_rng(count)
    names = [name for name in bundle.files if name.endswith((".json", ".onnx"))]
    messages = []
    for _ in range(count):
        name = ["bundle.json", *names][rng.integers(1 + len(names))]
        if name == "bundle.json":
            harmful = change(bundle, manifest=mutate(bundle.manifest, rng))
        elif name.endswith(".json"):
            data = json.dumps(mutate(json.loads(bundle.files[name]), rng)).encode()
            harmful = with_file(bundle, name, data)
        else:
            data = bytearray(bundle.files[name])
            data[rng.integers(len(data))] = rng.integers(256)
            harmful = with_file(bundle, name, bytes(data[: rng.integers(1, 2 * len(data))]))
        if not isinstance(harmful.manifest, dict):
            continue
        try:
            Predictor(unpack(pack(harmful)))
        except ServeError as error:
            messages.append(str(error))
    assert len(messages) > count // 4
    assert not [each for each in messages if "\n" in each or len(each) > 1000]
