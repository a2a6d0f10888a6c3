"""A federation by uploads: what is uploaded, stored, trained and refused."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import numpy as np
import pytest
import torch

from tests.upload.local_federation import ENCODER, N_ROWS, LocalFederation
from xvfl.config import NetConfig
from xvfl.errors import RunError
from xvfl.model.model import Model
from xvfl.model.run_dir import RunDir
from xvfl.service.uploads.upload_store import UploadStore
from xvfl.upload.manifest import parse_manifest
from xvfl.wire import messages
from xvfl.wire.messages import AskChunk, AskUpload, Begin, Embed, ErrorReply, HeldOut, UploadOffer

FIRST = 2**60
"""A request id above all earlier ones."""


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[LocalFederation]:
    """Return a matched federation."""
    made = LocalFederation(tmp_path)
    made.match()
    yield made
    made.close()


def test_it_trains_on_uploads_and_evaluates(federation: LocalFederation) -> None:
    outcome = federation.run()
    assert outcome.evaluation is not None
    modes = {line.mode for line in outcome.evaluation.lines}
    assert modes >= {"local", "assisted", "collaborative"}
    manifest = federation.coordinator.manifest()
    assert {name: each["version"] for name, each in manifest["encoders"].items()} == {
        "bank": 1,
        "shop": 1,
    }


def test_a_party_learns_from_all_its_rows_but_those_held_out(federation: LocalFederation) -> None:
    federation.run()
    for event in federation.events("encoder_training"):
        assert event["held_out"] > 0
        assert event["rows"] == N_ROWS + 30 - event["held_out"]


def test_the_held_out_rows_do_not_depend_on_labels(tmp_path: Path) -> None:
    lists = []
    for flip in (False, True):
        made = LocalFederation(tmp_path / str(flip))
        if flip:
            (made.coordinator / "secret.key").write_bytes(
                (tmp_path / "False" / "coordinator" / "secret.key").read_bytes()
            )
            (made.coordinator / "secret.key").chmod(0o600)
            made.labels = 1 - made.labels.sample(frac=1, random_state=1).set_axis(made.labels.index)
        stop = Event()
        made.match()
        stop.set()
        made.run(stop)
        lists.append(_held_out(made))
        made.close()
    assert lists[0] == lists[1]


def _held_out(made: LocalFederation) -> list[set[str]]:
    from xvfl.dataset.splits import Splits
    from xvfl.service.labeled_rows import LabeledRows
    from xvfl.service.secret import load_secret, run_seed

    seed = run_seed(load_secret(made.coordinator), "split 0")
    rows = LabeledRows.load(
        made.labels, made.match(), ("bank", "shop"), Splits(0.2, 0.15, seed), stratified=False
    )
    return [set(made.labels.index[part.numpy()]) for part in rows.parts[1:]]


def test_parties_may_have_embeddings_of_different_width(tmp_path: Path) -> None:
    narrow = dataclasses.replace(ENCODER, embedding_dim=5)
    made = LocalFederation(tmp_path, {"shop": narrow})
    made.match()
    assert made.run().evaluation is not None
    made.close()


def test_training_needs_no_party_once_the_uploads_are_stored(federation: LocalFederation) -> None:
    federation.run()
    before = federation.coordinator.load_tensors("model.safetensors")[0]
    for name in ("manifest.json", "model.safetensors", "checkpoint.safetensors"):
        (federation.coordinator / name).unlink()
    calls = []
    for service in federation.services.values():
        service.endpoint._chunk = lambda message: calls.append(message)  # type: ignore
    federation.run()
    after = federation.coordinator.load_tensors("model.safetensors")[0]
    assert not calls
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_a_stopped_training_resumes_with_the_same_weights(
    federation: LocalFederation, tmp_path: Path
) -> None:
    class AfterEpoch(Event):
        def is_set(self) -> bool:
            records = federation.coordinator.records()
            return len(records) == 1

    federation.run()
    expected = federation.coordinator.load_tensors("model.safetensors")[0]
    for name in ("manifest.json", "model.safetensors", "checkpoint.safetensors", "records.jsonl"):
        (federation.coordinator / name).unlink()
    assert federation.run(AfterEpoch()).evaluation is None
    assert federation.run().evaluation is not None
    found = federation.coordinator.load_tensors("model.safetensors")[0]
    assert all(torch.equal(expected[key], found[key]) for key in expected)


def test_an_encoder_that_was_stopped_continues(federation: LocalFederation, tmp_path: Path) -> None:
    service = federation.services["shop"]
    endpoint = service.endpoint
    endpoint._stop.set()
    transport = federation.transports()["shop"]
    handles = torch.arange(20, dtype=torch.int32)
    transport.request(HeldOut(FIRST, handles)).result(60)
    endpoint.close()
    assert (tmp_path / "shop/encoders/1/checkpoint.safetensors").is_file()
    again = federation.services["shop"] = federation.start_party("shop")
    assert again.endpoint._thread is not None
    again.endpoint._thread.join()
    assert (tmp_path / "shop/encoders/1/weights.safetensors").is_file()
    offer = federation.transports()["shop"].request(AskUpload(FIRST + 1)).result(60)
    assert isinstance(offer, UploadOffer) and offer.version == 1


FORBIDDEN = [
    Begin(FIRST, "run", 0, "{}", torch.zeros(0, dtype=torch.int32)),
    Embed(FIRST, (), (), 0, True, ("plain",), torch.zeros(1, dtype=torch.int32)),
    messages.Flush(FIRST, (), (), -1),
    messages.Complete(FIRST, 1, torch.zeros(1, 4), torch.zeros(1, dtype=torch.bool)),
    messages.OpenPrediction(FIRST, "run"),
    messages.EmbedRows(FIRST, "someone", ("plain",), torch.zeros(1, dtype=torch.int32)),
]


@pytest.mark.parametrize("message", FORBIDDEN, ids=lambda each: type(each).__name__)
def test_a_party_accepts_no_message_that_names_a_net_a_view_or_a_step(
    federation: LocalFederation, message: messages.Message
) -> None:
    reply = federation.transports()["shop"].request(message).result(60)
    assert isinstance(reply, ErrorReply) and "interactive" in reply.text
    assert federation.events("request_rejected")
    assert federation.run().evaluation is not None


def test_the_held_out_list_is_fixed(federation: LocalFederation) -> None:
    transport = federation.transports()["shop"]
    first = torch.arange(20, dtype=torch.int32)
    transport.request(HeldOut(FIRST, first)).result(60)
    reply = transport.request(HeldOut(FIRST + 1, first + 1)).result(60)
    assert isinstance(reply, ErrorReply) and "another list" in reply.text


def test_another_version_needs_the_operator(federation: LocalFederation) -> None:
    federation.run()
    reply = federation.transports()["shop"].request(AskChunk(FIRST, 2, 0)).result(60)
    assert isinstance(reply, ErrorReply) and "operator" in reply.text


def test_an_upload_is_checked_by_shape_range_and_digest(federation: LocalFederation) -> None:
    federation.run()
    folder = federation.coordinator
    text = (folder / "uploads/shop/1/upload.json").read_text()
    manifest = parse_manifest(text)
    values = np.fromfile(folder / "uploads/shop/1/views.f16", np.float16)
    assert len(values) == N_ROWS * 3 * 16
    good = torch.from_numpy(values).view(manifest.shape(0))
    status = torch.from_numpy(np.fromfile(folder / "uploads/shop/1/status.u8", np.uint8))
    store = UploadStore(RunDir(folder / "other").create(), manifest)
    for bad in (good[1:], good.float(), good * 1000, good * torch.nan, good.flip(0)):
        with pytest.raises(ValueError, match="chunk 0"):
            store.add(0, bad, status)
        assert store.missing == [0]
    store.add(0, good, status)
    assert store.missing == []
    with pytest.raises(ValueError, match="new version"):
        UploadStore(
            RunDir(folder / "other"), dataclasses.replace(manifest, created="2020-01-01T00:00:00Z")
        )


def test_a_changed_upload_is_rejected_by_the_run(federation: LocalFederation) -> None:
    endpoint = federation.services["shop"].endpoint
    chunk = endpoint._chunk

    def forged(message: AskChunk) -> messages.UploadChunk:
        reply = chunk(message)
        return dataclasses.replace(reply, values=reply.values / 2)

    endpoint._chunk = forged  # type: ignore[method-assign]
    with pytest.raises(RunError, match="'shop'.*digest"):
        federation.run()


def test_a_released_head_predicts_as_the_coordinator_does(federation: LocalFederation) -> None:
    from xvfl.service.release import load_signing_key

    load_signing_key(federation.coordinator, None)
    outcome = federation.run(release_to=("shop",), net=NetConfig(heads=2))
    assert outcome.evaluation is not None
    model = Model.load(RunDir(federation.folder / "shop" / "bundle"))
    found = model.predict({"shop": federation.tables["shop"].drop(columns=[])}, "local", "shop")
    assert len(found.ids) == N_ROWS + 30
    line = next(
        line for line in outcome.evaluation.lines if line.mode == "local" and line.party == "shop"
    )
    assert line.rows > 0
