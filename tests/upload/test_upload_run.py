"""A federation by uploads: what is uploaded, stored, trained and refused."""

import dataclasses
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from threading import Event
from typing import cast

import numpy as np
import pandas as pd
import pytest
import torch

from tests.upload.local_federation import ENCODER, N_ROWS, LocalFederation
from xvfl.config import LossConfig, NetConfig, TrainConfig
from xvfl.dataset.splits import Splits
from xvfl.errors import ConfigError, RunError
from xvfl.federation.upload.manifest import parse_manifest
from xvfl.model.model import Model
from xvfl.model.run_dir import RunDir
from xvfl.service.config import CoordinatorLabels
from xvfl.service.labeled_rows import split_by_id
from xvfl.service.release import load_signing_key
from xvfl.service.release_delivery import use_head
from xvfl.service.release_store import ReleaseStore
from xvfl.service.uploads.upload_store import UploadStore
from xvfl.wire import messages
from xvfl.wire.in_process import InProcessTransport
from xvfl.wire.messages import AskChunk, AskUpload, Begin, Embed, ErrorReply, HeldOut, UploadOffer

FIRST = 2**60
"""A request id above all earlier ones."""


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[LocalFederation]:
    """Return a matched federation."""
    made = LocalFederation(tmp_path)
    yield made
    made.close()


def test_it_matches_trains_on_uploads_and_evaluates(tmp_path: Path) -> None:
    federation = LocalFederation(tmp_path, matched=False)
    outcome = federation.run()
    federation.close()
    assert outcome.evaluation is not None
    modes = {line.mode for line in outcome.evaluation.lines}
    assert modes >= {"local", "assisted", "collaborative"}
    manifest = federation.head.manifest()
    assert {name: each["version"] for name, each in manifest["encoders"].items()} == {
        "bank": 1,
        "shop": 1,
    }


def test_a_party_learns_from_all_its_rows_but_those_held_out(federation: LocalFederation) -> None:
    federation.run()
    for event in federation.events("encoder_training"):
        assert event["held_out"] > 0
        assert event["rows"] == N_ROWS + 30 - event["held_out"]


def test_rows_are_held_out_by_their_ids_alone() -> None:
    splits = Splits(0.2, 0.15, 7)
    ids = [f"r{i}" for i in range(5000)]
    train, validation, test = split_by_id(ids, splits)
    assert len(test) == pytest.approx(1000, abs=120)
    assert len(validation) == pytest.approx(600, abs=100)
    assert sorted(torch.cat([train, validation, test]).tolist()) == list(range(5000))
    fewer = [each for each in ids if hash(each) % 3]
    again = split_by_id(fewer, splits)[2]
    kept = set(fewer)
    assert {fewer[i] for i in again} == {ids[i] for i in test.tolist() if ids[i] in kept}


def test_the_held_out_rows_do_not_depend_on_labels(federation: LocalFederation) -> None:
    federation.run()
    first = {name: _held_out(federation, name) for name in ("bank", "shop")}
    federation.labels = 1 - federation.labels
    federation.labels.iloc[:50] = np.nan
    federation.run(retrain=True)
    assert {name: _held_out(federation, name) for name in ("bank", "shop")} == first
    assert len(federation.events("encoder_training")) == 2


def _held_out(federation: LocalFederation, name: str) -> list[int]:
    stored: list[int] = RunDir(federation.folder / name).read_json("held_out.json")["handles"]
    return stored


def test_the_shares_of_held_out_rows_are_fixed(federation: LocalFederation) -> None:
    federation.run()
    with pytest.raises(ConfigError, match="test_fraction.*expected 0.2"):
        federation.run(retrain=True, test_fraction=0.3)


@pytest.mark.slow
def test_parties_may_have_embeddings_of_different_width(tmp_path: Path) -> None:
    narrow = dataclasses.replace(ENCODER, embedding_dim=5)
    made = LocalFederation(tmp_path, {"shop": narrow})
    assert made.run().evaluation is not None
    made.close()


def test_training_needs_no_party_once_the_uploads_are_stored(federation: LocalFederation) -> None:
    federation.run()
    first = federation.head
    assert first.path.name == "1"
    outcome = federation.run(retrain=True, offline=True, net=NetConfig(heads=2))
    assert outcome.evaluation is not None
    assert federation.head.path.name == "2"
    assert len(federation.head.load_tensors("model.safetensors")[0]) > 0
    assert first.has("model.safetensors")


def test_a_finished_head_is_not_trained_again_unless_asked(federation: LocalFederation) -> None:
    federation.run()
    with pytest.raises(RunError, match="--retrain"):
        federation.run()


@pytest.mark.slow
def test_an_unfinished_head_does_not_predict(federation: LocalFederation) -> None:
    federation.run()

    class Now(Event):
        def is_set(self) -> bool:
            return len(RunDir(federation.coordinator / "heads/2").records()) == 1

    assert federation.run(Now(), retrain=True).evaluation is None
    assert federation.head.path.name == "1"
    assert federation.run().evaluation is not None
    assert federation.head.path.name == "2"


def test_going_back_uses_the_head_before_and_releases_it(federation: LocalFederation) -> None:
    load_signing_key(federation.coordinator, None)
    federation.run(release_to=("shop",))
    first = federation.head.manifest()["run"]
    federation.run(retrain=True, release_to=("shop",))
    second = federation.head.manifest()["run"]
    config = federation.config(release_to=("shop",))
    assert ReleaseStore(federation.coordinator).records()["shop"].run == second
    assert use_head(config).path.name == "1"
    assert federation.head.manifest()["run"] == first
    record = ReleaseStore(federation.coordinator).records()["shop"]
    assert record.run == first and not record.delivered
    with pytest.raises(RunError, match="first one"):
        use_head(config)


def test_rows_without_a_label_train_heads_that_can_use_them(federation: LocalFederation) -> None:
    federation.labels = federation.labels.astype(float)
    federation.labels.iloc[::2] = np.nan
    federation.run()
    rows = federation.head.manifest()["rows"]
    assert rows["unlabeled"] > 50 and rows["labeled"] > 50
    assert rows["validation"] + rows["test"] < 60
    federation.run(retrain=True, loss=LossConfig(method="laser"))
    assert federation.head.manifest()["rows"]["unlabeled"] == 0


@pytest.mark.slow
def test_numbers_are_predicted_too(tmp_path: Path) -> None:
    made = LocalFederation(tmp_path)
    made.labels = pd.Series(np.random.default_rng(0).normal(size=N_ROWS), made.labels.index)
    made.labels.iloc[:20] = np.nan
    labels = CoordinatorLabels("labels.csv", "id", "y", "regression")
    outcome = made.run(labels=labels)
    assert outcome.evaluation is not None
    made.close()


ALL_MODES = {"local", "assisted", "peers", "collaborative"}


@pytest.mark.parametrize(
    ("method", "modes"),
    [
        ("xvfl+", ALL_MODES),
        ("xvfl", ALL_MODES),
        ("standalone", {"local"}),
        ("vanilla", {"local", "collaborative"}),
        ("laser", ALL_MODES - {"assisted"}),
        ("laser+mask", ALL_MODES - {"assisted"}),
    ],
)
def test_methods_with_one_embedding_train_on_uploads(
    federation: LocalFederation, method: str, modes: set[str]
) -> None:
    outcome = federation.run(loss=LossConfig(method=method), train=TrainConfig(epochs=1))
    assert outcome.evaluation is not None
    assert {line.mode for line in outcome.evaluation.lines if line.metrics} == modes


def test_methods_with_two_encoders_are_refused(
    federation: LocalFederation, two_encoders: str
) -> None:
    with pytest.raises(ConfigError, match="label_protection"):
        federation.run(loss=LossConfig(method=two_encoders))


def test_a_failed_encoder_is_reported_without_its_details(tmp_path: Path) -> None:
    made = LocalFederation(tmp_path)
    encoder = made.services["shop"]._encoder

    def fail(*arguments: object) -> bool:
        raise ValueError("customer 17 is ill")

    encoder.train = fail  # type: ignore[method-assign]
    with pytest.raises(RunError, match="'shop'.*not trained.*see its log") as caught:
        made.run()
    assert "17" not in str(caught.value)
    (event,) = made.events("encoder_failed")
    assert "customer 17" in event["reason"]
    made.close()


def test_a_stopped_training_resumes_with_the_same_weights(
    federation: LocalFederation, tmp_path: Path
) -> None:
    class AfterEpoch(Event):
        def is_set(self) -> bool:
            return len(head.records()) == 1

    head = RunDir(federation.coordinator / "heads/1")
    federation.run()
    expected = head.load_tensors("model.safetensors")[0]
    for name in ("manifest.json", "model.safetensors", "checkpoint.safetensors", "records.jsonl"):
        (head / name).unlink()
    assert federation.run(AfterEpoch()).evaluation is None
    assert federation.run().evaluation is not None
    found = head.load_tensors("model.safetensors")[0]
    assert all(torch.equal(expected[key], found[key]) for key in expected)


def test_an_encoder_that_was_stopped_continues(federation: LocalFederation, tmp_path: Path) -> None:
    service = federation.services["shop"]
    service._stop.set()
    transport = federation.transports()["shop"]
    handles = torch.arange(20, dtype=torch.int32)
    transport.request(HeldOut(FIRST, handles)).result(60)
    service.close()
    assert (tmp_path / "shop/encoders/1/checkpoint.safetensors").is_file()
    again = federation.services["shop"] = federation.start_party("shop")
    assert again._thread is not None
    again._thread.join()
    assert (tmp_path / "shop/encoders/1/weights.safetensors").is_file()
    offer = federation.transports()["shop"].request(AskUpload(FIRST + 1)).result(60)
    assert isinstance(offer, UploadOffer) and offer.version == 1


FORBIDDEN = [
    Begin(FIRST, "run", 0, "{}", torch.zeros(0, dtype=torch.int32)),
    Embed(FIRST, (), (), 0, True, ("plain",), torch.zeros(1, dtype=torch.int32)),
    messages.Flush(FIRST, (), (), -1),
    messages.Complete(FIRST, 1, torch.zeros(1, 4), torch.zeros(1, dtype=torch.bool)),
    messages.Backward(FIRST, messages.Gradient(1, torch.zeros(1, 4))),
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


def test_a_party_receives_control_messages_and_the_held_out_list_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, received = LocalFederation(tmp_path, matched=False), list[messages.Message]()
    request = InProcessTransport.request

    def record(self: InProcessTransport, message: messages.Message) -> "Future[messages.Message]":
        received.append(message)
        return request(self, message)

    monkeypatch.setattr(InProcessTransport, "request", record)
    assert made.run().evaluation is not None
    made.close()
    control = {AskUpload, AskChunk, messages.UploadStored, messages.End}
    assert {type(each) for each in received} == {messages.Match, HeldOut, *control}
    # Nothing but the list has numbers of rows, or is long.
    for message in received:
        fields = dataclasses.asdict(message)
        tensors = [name for name, each in fields.items() if isinstance(each, torch.Tensor)]
        assert tensors == (["handles"] if isinstance(message, HeldOut) else [])
        if type(message) in control:
            assert all(isinstance(each, int) or len(str(each)) <= 32 for each in fields.values())


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
    origin = torch.full((N_ROWS,), -1, dtype=torch.int32)
    store = UploadStore(RunDir(folder / "other").create(), manifest)
    for bad in (good[1:], good.float(), good * 1000, good * torch.nan, good.flip(0)):
        with pytest.raises(ValueError, match="chunk 0"):
            store.add(0, origin, bad, status)
        assert store.missing == [0]
    for bad in (origin[1:], origin.long(), origin + 1, origin - 1, origin - 3):
        with pytest.raises(ValueError, match="chunk 0"):
            store.add(0, bad, good, status)
    store.add(0, origin, good, status)
    assert store.missing == []
    with pytest.raises(ValueError, match="new version"):
        UploadStore(
            RunDir(folder / "other"), dataclasses.replace(manifest, created="2020-01-01T00:00:00Z")
        )


def test_a_changed_upload_is_rejected_by_the_run(federation: LocalFederation) -> None:
    endpoint = federation.services["shop"].endpoint
    chunk = endpoint._replies[AskChunk]

    def forged(message: AskChunk) -> messages.UploadChunk:
        reply = cast(messages.UploadChunk, chunk(message))
        return dataclasses.replace(reply, values=reply.values / 2)

    endpoint._replies = {**endpoint._replies, AskChunk: forged}
    with pytest.raises(RunError, match="'shop'.*digest"):
        federation.run()


def test_a_released_head_predicts_as_the_coordinator_does(federation: LocalFederation) -> None:
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
