"""Encoders that are trained on another machine and installed by a command."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray

from tests.command_line import run_xvfl
from tests.processes import ENVIRONMENT, free_port, until_finished
from tests.upload.file_federation import FileFederation, certificates
from tests.upload.local_federation import ENCODER, PARTIES
from xvfl.errors import ConfigError, InputError, RunError
from xvfl.matching.alignment import load_coordinator_alignment
from xvfl.model.run_dir import RunDir
from xvfl.service.config import ALIGNMENT, PartyProcessConfig
from xvfl.service.head_store import HeadStore
from xvfl.service.party_inputs import PartyInputs
from xvfl.service.uploads.encoder_file import (
    export_excluded,
    install_encoder,
    read_excluded,
    train_encoder_file,
)
from xvfl.service.uploads.file_exchange import export_held_out
from xvfl.service.uploads.party_encoder import allow_next_version
from xvfl.service.uploads.party_withdrawal import withdraw_rows
from xvfl.service.uploads.upload_store import find_upload


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[FileFederation]:
    made = FileFederation(tmp_path)
    yield made
    made.close()


def inputs_of(federation: FileFederation) -> PartyInputs:
    """Load what the party 'bank' has."""
    return PartyInputs.load("bank", federation.party("bank"), RunDir(federation.folder / "bank"))


def excluded(federation: FileFederation, held_out: bool = True) -> list[str]:
    """Exchange the held-out list of 'bank', and write and read the ids that it excludes."""
    signed, out = federation.folder / "bank.heldout", federation.folder / "bank.exclude"
    if held_out:
        export_held_out(federation.service(), "bank", signed)
    given = signed if held_out else None
    n_ids = export_excluded(inputs_of(federation), given, out)
    name, ids = read_excluded(out)
    assert name == "bank" and len(ids) == n_ids
    return ids


def train(federation: FileFederation, ids: list[str], **changes: object) -> Path:
    """Train the encoder of 'bank' in a folder without its state."""
    folder, out = RunDir(federation.folder / "elsewhere").create(), federation.folder / "bank.enc"
    elsewhere = replace(inputs_of(federation), folder=folder, **changes)  # type: ignore[arg-type]
    rows = train_encoder_file(elsewhere, ids, out, Event())
    assert rows == len(federation.tables["bank"]) - len(ids)
    assert not folder.path.exists()
    return out


def with_encoder(federation: FileFederation, **options: Any) -> PartyProcessConfig:
    """Return the configuration of 'bank' with another encoder."""
    return replace(federation.party("bank"), encoder=replace(ENCODER, **options))


@pytest.mark.slow
def test_the_party_uploads_with_the_installed_encoder(federation: FileFederation) -> None:
    path = train(federation, excluded(federation))
    assert install_encoder(inputs_of(federation), path) == 1
    federation.services["bank"].close()
    federation.services["bank"] = federation.start_party("bank")
    federation.run()
    given = RunDir(path.parent).load_tensors(path.name)[0]
    installed = RunDir(federation.folder / "bank/encoders/1")
    stored, about = installed.load_tensors("weights.safetensors")
    assert about["config"]["epochs"] == ENCODER.epochs
    cells = installed.load_tensors("cells.safetensors")[0]
    stored |= {f"cells/{name}": each for name, each in cells.items()}
    assert given.keys() == stored.keys() and len(cells) > 20
    assert all(torch.equal(given[key], stored[key]) for key in given)
    assert not [each for each in federation.log if each["event"] == "encoder_failed"]
    with pytest.raises(RunError, match="version 1 of the encoder is trained already"):
        install_encoder(inputs_of(federation), path)
    allow_next_version(RunDir(federation.folder / "bank"))
    path = train(federation, excluded(federation, held_out=False))
    assert install_encoder(inputs_of(federation), path) == 2


def test_a_stopped_training_continues(federation: FileFederation) -> None:
    ids, stop, out = excluded(federation), Event(), federation.folder / "bank.enc"
    folder = RunDir(federation.folder / "elsewhere").create()
    elsewhere = replace(inputs_of(federation), folder=folder)
    stop.set()
    assert train_encoder_file(elsewhere, ids, out, stop) is None
    assert list(folder.path.rglob("checkpoint.safetensors")) and not out.exists()
    train(federation, ids)


def test_an_encoder_of_other_rows_columns_or_settings_is_rejected(
    federation: FileFederation,
) -> None:
    with pytest.raises(RunError, match="held-out rows of this alignment are not known yet"):
        excluded(federation, held_out=False)
    ids = excluded(federation)
    path, inputs = train(federation, ids[1:]), inputs_of(federation)
    with pytest.raises(RunError, match="neither held out nor withdrawn"):
        install_encoder(inputs, path)
    table = federation.tables["bank"]
    path = train(federation, ids, source=table.rename(columns={"x0": "other"}))
    with pytest.raises(RunError, match="it has the columns"):
        install_encoder(inputs, path)
    path = train(federation, ids, config=with_encoder(federation, epochs=1))
    with pytest.raises(RunError, match="'epochs': 2.*'epochs': 1"):
        install_encoder(inputs, path)
    path = train(federation, ids)
    whole = path.read_bytes()
    path.write_bytes(whole[:-4])
    with pytest.raises(RunError, match="the encoder is rejected.*truncated or damaged"):
        install_encoder(inputs, path)
    path.write_bytes(whole)
    withdraw_rows(inputs, [next(each for each in table.index if each not in ids)])
    with pytest.raises(RunError, match="neither held out nor withdrawn"):
        install_encoder(inputs, path)
    assert not (federation.folder / "bank/encoders/1/weights.safetensors").exists()


def test_a_file_of_another_kind_a_foreign_id_and_epsilon_are_rejected(
    federation: FileFederation,
) -> None:
    ids = excluded(federation)
    with pytest.raises(InputError, match="1 of .* excluded ids are not in the table"):
        train(federation, [*ids, "nobody"])
    with pytest.raises(ConfigError, match=r"encoder\.epsilon"):
        train(federation, ids, config=with_encoder(federation, epsilon=1.0))
    other = federation.folder / "other.json"
    other.write_text("{}")
    with pytest.raises(InputError, match="expected a file of `xvfl upload exclude`"):
        read_excluded(other)


N_IMAGES, WAIT_S = 2000, 1200.0
WEIGHTS = "state/encoders/1/weights.safetensors"
PACK = Path(os.environ.get("XVFL_DATA", "")) / "cifar10" / "test.npz"
COORDINATOR = """\
listen = "127.0.0.1:{port}"
parties = ["bank", "shop"]
state_dir = "state"
[tls]
ca_certificate = "../certs/ca.crt"
certificate = "../certs/coordinator.crt"
private_key = "../certs/coordinator.key"
[labels]
table = "labels.csv"
id_column = "id"
column = "y"
[train]
epochs = 2
batch_size = 256
patience = 0
device = "cpu"
[net]
heads = 1
"""
PARTY = """\
coordinator = "localhost:{port}"
table = "images.npz"
state_dir = "state"
[tls]
ca_certificate = "../certs/ca.crt"
certificate = "../certs/{name}.crt"
private_key = "../certs/{name}.key"
[encoder]
epochs = 1
embedding_dim = 16
n_blocks = 1
base_channels = 8
masked_copies = 1
"""


def images() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return images of CIFAR-10 and their classes; without the data, images with drawn patterns."""
    if not PACK.is_file():
        rng = np.random.default_rng(0)
        y = rng.integers(0, 10, N_IMAGES)
        patterns = rng.integers(0, 160, (10, 3, 32, 32))
        return (patterns[y] + rng.integers(0, 96, (N_IMAGES, 3, 32, 32))).astype(np.uint8), y
    unpack = pytest.importorskip("xvfl_lab.datasets.image_sets").unpack
    with np.load(PACK) as pack:
        return unpack(pack["d"][:, :N_IMAGES]), pack["y"][:N_IMAGES].astype(np.int64)


def start(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    """Start a command in a folder."""
    return subprocess.Popen(
        [sys.executable, "-m", "xvfl", *until_finished(*arguments)],
        cwd=folder,
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(*processes: "subprocess.Popen[str]") -> None:
    """Wait for the successful end of processes; kill them on an error."""
    until = time.monotonic() + WAIT_S
    try:
        for process in processes:
            _, errors = process.communicate(timeout=until - time.monotonic())
            assert process.returncode == 0, errors
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.mark.slow
def test_images_are_uploaded_by_processes_with_an_encoder_installed_by_command(
    tmp_path: Path,
) -> None:
    pixels, y = images()
    ids, port = [f"i{i}" for i in range(N_IMAGES)], free_port()
    certificates(tmp_path / "certs")
    folders = {name: tmp_path / name for name in ("coordinator", *PARTIES)}
    for i, (name, folder) in enumerate(folders.items()):
        folder.mkdir()
        text = PARTY if name in PARTIES else COORDINATOR
        (folder / f"{name}.toml").write_text(text.format(port=port, name=name))
        if name in PARTIES:
            half = pixels[..., 16 * (i - 1) : 16 * i]
            np.savez(folder / "images.npz", images=half, ids=np.array(ids))
    labels = pd.DataFrame({"id": ids, "y": y})
    labels.to_csv(folders["coordinator"] / "labels.csv", index=False)
    finish(*(start(folder, "align", f"{name}.toml") for name, folder in folders.items()))
    coordinator, party = folders["coordinator"] / "coordinator.toml", folders["bank"] / "bank.toml"
    signed, out, elsewhere = (tmp_path / each for each in ("bank.heldout", "bank.exclude", "gpu"))
    for command in (
        ("held-out", coordinator, "--party", "bank", "--out", signed),
        ("exclude", party, "--held-out", signed, "--out", out),
    ):
        said = run_xvfl("upload", *command)
        assert said.code == 0, said.err
    # The other machine has these files alone.
    elsewhere.mkdir()
    for path in (party, out, folders["bank"] / "images.npz"):
        shutil.copy(path, elsewhere)
    more = ("--exclude", out.name, "--out", "bank.encoder", "--device", "cpu")
    finish(start(elsewhere, "upload", "train", party.name, *more))
    said = run_xvfl("upload", "install", party, elsewhere / "bank.encoder")
    assert said.code == 0, said.err
    installed = (folders["bank"] / WEIGHTS).read_bytes()
    finish(
        *(
            start(folder, "party" if name in PARTIES else name, f"{name}.toml")
            for name, folder in folders.items()
        )
    )
    state = RunDir(folders["coordinator"] / "state")
    head = HeadStore(state).current.manifest()
    alignment = load_coordinator_alignment(state / ALIGNMENT)
    for name in PARTIES:
        upload = find_upload(state, name, alignment.matches[name].session.hex())
        assert upload is not None and upload.manifest.rows == N_IMAGES and upload.manifest.image
        assert head["encoders"][name]["digest"] == upload.manifest.digest
        digest = blake2b(installed, digest_size=16).hexdigest()
        assert (upload.manifest.encoder == digest) == (name == "bank")
