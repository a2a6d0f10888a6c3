"""Uploads between sides that do not trust each other: what each makes the other do is bounded."""

import dataclasses
import json
import math
import os
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.upload.file_federation import SESSION, StoredFederation
from tests.upload.local_federation import N_ROWS, LocalFederation
from xvfl.certs import PeerVerifier
from xvfl.config import UploadTerms
from xvfl.errors import RunError, WireError
from xvfl.federation.message_checks import MAX_REASON
from xvfl.federation.prediction_endpoint import REFUSED, WITHDRAWN, _take
from xvfl.federation.prediction_ledger import PredictionLedger, PredictionLimits
from xvfl.federation.remote_party import RemoteParty
from xvfl.federation.upload.manifest import chunk_digest, parse_manifest
from xvfl.model.run_dir import RunDir
from xvfl.service.align import match_parties
from xvfl.service.config import MatchingConfig, TimeoutConfig
from xvfl.service.head_store import HeadStore
from xvfl.service.listener import _reply_limit
from xvfl.service.prediction.party_prediction import PartyPredictor
from xvfl.service.prediction.stand_in import StandIn
from xvfl.service.release import load_signing_key
from xvfl.service.release_delivery import use_head
from xvfl.service.release_store import ReleaseStore
from xvfl.service.trained_heads import TrainedHeads
from xvfl.service.uploads import upload_store
from xvfl.service.uploads.file_exchange import import_upload
from xvfl.service.uploads.party_withdrawal import (
    find_withdrawn,
    read_receipt,
    record_withdrawal,
    store_receipt,
    withdraw_rows,
    withdraw_version,
)
from xvfl.service.uploads.receive import UploadReceiver
from xvfl.service.uploads.upload_run import MAX_RESTARTS
from xvfl.service.uploads.upload_store import UploadStore, find_upload, stored_uploads
from xvfl.service.uploads.withdrawals import enforce_terms, withdraw
from xvfl.system.locks import file_lock
from xvfl.wire import codec
from xvfl.wire.in_process import InProcessTransport
from xvfl.wire.limited_log import MAX_LINES
from xvfl.wire.limits import SMALL_BYTES, UPLOAD_CHUNK_BYTES, reply_limit
from xvfl.wire.messages import (
    AskChunk,
    AskUpload,
    Done,
    EmbedRows,
    ErrorReply,
    HeldOut,
    Hello,
    Message,
    OpenPrediction,
    Release,
    RowEmbeddings,
    UploadChunk,
    UploadOffer,
    UploadStored,
    Withdraw,
)
from xvfl.wire.texts import MAX_DOCUMENT_BYTES

FIRST = 2**60
"""A request id above all earlier ones."""


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[LocalFederation]:
    made = LocalFederation(tmp_path)
    yield made
    made.close()


@pytest.fixture
def stored(tmp_path: Path) -> StoredFederation:
    made = StoredFederation(tmp_path)
    import_upload(made.service, made.write())
    return made


def rows(*handles: int, session: str = SESSION) -> Withdraw:
    return Withdraw(0, session, 0, False, torch.tensor(handles, dtype=torch.int32))


def ask(federation: LocalFederation, message: Message, party: str = "shop") -> Message:
    return federation.transports()[party].request(message).result(60)


def found(made: StoredFederation) -> UploadStore:
    store = find_upload(made.service.folder, "bank", SESSION)
    assert store is not None
    return store


# A coordinator against a party.


@pytest.mark.parametrize(
    "handles",
    [[3, 2], [1, 1], [-1, 0], [0] * 1000, list(range(N_ROWS - 2))],
    ids=["unsorted", "repeated", "unmatched", "long", "nearly all rows"],
)
def test_a_held_out_list_does_not_choose_what_is_learned(
    federation: LocalFederation, handles: list[int]
) -> None:
    reply = ask(federation, HeldOut(FIRST, torch.tensor(handles, dtype=torch.int32)))
    assert isinstance(reply, ErrorReply) and "HeldOut: " in reply.text
    assert not (federation.folder / "shop/held_out.json").exists()
    assert not federation.events("encoder_training")


def test_changed_rows_are_not_sent_as_the_same_version(federation: LocalFederation) -> None:
    federation.run()
    assert isinstance(ask(federation, AskChunk(FIRST, 1, 0)), UploadChunk)
    federation.services["shop"].close()
    federation.tables["shop"].iloc[0] += 1.0
    shop = federation.services["shop"] = federation.start_party("shop")
    assert shop._thread is not None
    shop._thread.join()
    reply = ask(federation, AskChunk(FIRST + 1, 1, 0))
    assert isinstance(reply, ErrorReply) and "new-version --keep-encoder" in reply.text


def test_rows_withdrawn_at_the_party_do_not_leave_it(federation: LocalFederation) -> None:
    federation.run()
    shop = federation.services["shop"]
    withdraw_rows(shop.inputs, ["r3"])
    for _ in range(2):
        reply = ask(federation, AskChunk(FIRST, 1, 0))
        assert isinstance(reply, ErrorReply) and "withdrawn" in reply.text
        shop.close()
        shop = federation.services["shop"] = federation.start_party("shop")
        assert shop._thread is not None
        shop._thread.join()


def test_withdrawn_ids_are_found_in_another_table(federation: LocalFederation) -> None:
    inputs = federation.services["shop"].inputs
    assert not find_withdrawn(inputs.folder, ["r3"], "folded").any()
    withdraw_rows(inputs, ["r3"])
    assert find_withdrawn(inputs.folder, ["r4", " R3"], "folded").tolist() == [False, True]


def test_withdrawn_rows_are_refused_in_predictions(tmp_path: Path) -> None:
    ledger = PredictionLedger(PredictionLimits(), 4, tmp_path)
    withdrawn = np.array([False, True, False, False])
    opened: Any = SimpleNamespace(ledger=ledger, withdrawn=lambda: withdrawn)
    allowed, refusal = _take(opened, np.array([2, 1, 0]), "someone")
    assert allowed.tolist() == [True, False, True] and refusal == WITHDRAWN
    assert ledger.usage()["prediction_requests_today"] == 2


def test_a_coordinator_does_not_fill_the_log(federation: LocalFederation) -> None:
    federation.run()
    transport = federation.transports()["shop"]
    for number in range(300):
        transport.request(UploadStored(FIRST + number, 1, "0" * 32)).result(60)
        transport.request(AskChunk(FIRST + number, 9, 0)).result(60)
    assert len(federation.events("upload_stored")) == 2, "one for each party"
    assert len(federation.events("request_rejected")) == MAX_LINES


def test_a_released_head_takes_no_more_memory_than_the_message_has(
    federation: LocalFederation,
) -> None:
    load_signing_key(federation.coordinator, None)
    federation.run(release_to=("shop",))
    store = ReleaseStore(federation.coordinator)
    message = store.load("shop")
    manifest = json.loads(message.manifest)
    head = dict(zip(manifest.pop("tensors"), message.tensors, strict=True))
    manifest["head_net"]["hidden_dim"] = 2**20
    store.release("shop", manifest, head)
    huge = store.load("shop")
    request = Release(FIRST, huge.manifest, huge.tensors, huge.signature)
    reply = ask(federation, request)
    assert isinstance(reply, ErrorReply) and "weights, and it carries" in reply.text


def test_a_receipt_is_shown_in_short_lines(stored: StoredFederation, tmp_path: Path) -> None:
    receipt = withdraw(stored.service.folder, stored.config.signing_key, "bank", rows(0), print)
    long = "\x1b[2J" + "x" * 5000
    given = {**json.loads(receipt.manifest), "time": long, "heads": 500 * [{"run": long}]}
    folder = RunDir(tmp_path / "bank")
    forged = dataclasses.replace(receipt, manifest=json.dumps(given))
    statement = store_receipt(folder, "bank", forged, None)
    texts = [statement["time"], *statement["runs"]]
    assert len(texts) == 101 and all(len(each) <= 100 and each.isprintable() for each in texts)
    path = tmp_path / "huge"
    with path.open("wb") as file:
        file.truncate(2**30)
    with pytest.raises(RunError, match="not a receipt"):
        read_receipt(path)


# A party against the coordinator.


FORGED = [
    ({"noise_std": 6000.0}, "noise_std"),
    ({"epsilon": math.nan}, "epsilon"),
    ({"epsilon": 1.0, "noise_std": 6000.0}, "noise_std"),
    ({"created": "yesterday"}, "created"),
    ({"created": "2026-01-01"}, "created"),
    ({"width": 4096, "masked_copies": 31, "chunk_rows": 300, "chunks": ["0" * 32]}, "bytes"),
    ({"width": "\x1b[2J" + "x" * 100_000}, "expected an integer"),
    ({"\x1b[2J" + "x" * 100_000: 1}, "unknown key"),
]


@pytest.mark.parametrize(("forged", "reason"), FORGED, ids=[reason for _, reason in FORGED])
def test_a_manifest_is_rejected_in_a_short_line(
    tmp_path: Path, forged: dict[str, Any], reason: str
) -> None:
    manifest, _ = StoredFederation(tmp_path, rows=300).upload()
    with pytest.raises(WireError, match=reason) as caught:
        parse_manifest(json.dumps({**json.loads(manifest.to_json()), **forged}))
    assert len(str(caught.value)) <= MAX_REASON and str(caught.value).isprintable()


def test_noise_of_an_epsilon_widens_the_range(tmp_path: Path) -> None:
    manifest, _ = StoredFederation(tmp_path).upload(epsilon=0.01, noise_std=640.0)
    assert parse_manifest(manifest.to_json()).max_value == 6401


def test_noise_is_bounded_by_the_coordinator_and_not_by_the_party(tmp_path: Path) -> None:
    made = StoredFederation(tmp_path)
    with pytest.raises(RunError, match=r"noise of 640; .* up to max_noise = 8"):
        import_upload(made.service, made.write(epsilon=0.01, noise_std=640.0))
    # Within the range of a number, and larger than embeddings with noise.
    large = [(o, (v * 70).half(), s) for o, v, s in made.upload()[1]]
    stated = {"epsilon": 1.0, "noise_std": 7.5, "chunks": tuple(map(chunk_digest, large))}
    manifest, _ = made.upload(**stated)
    with pytest.raises(WireError, match=r"embeddings of length 1 with noise of 7\.5"):
        UploadStore(made.service.folder, manifest).add(0, *large[0])


@pytest.mark.parametrize(
    ("request_", "most"),
    [
        (HeldOut(1, torch.zeros(0)), SMALL_BYTES),
        (UploadStored(1, 1, ""), SMALL_BYTES),
        (AskUpload(1), SMALL_BYTES + MAX_DOCUMENT_BYTES),
        (AskChunk(1, 1, 0), SMALL_BYTES + UPLOAD_CHUNK_BYTES),
    ],
)
def test_replies_are_bounded_before_they_arrive(request_: Message, most: int) -> None:
    assert reply_limit(2**28)(request_, Hello(0, "", False, 0, "", "")) == most


def test_an_upload_that_is_too_large_for_the_disk_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = StoredFederation(tmp_path)
    size = made.upload()[0].n_bytes - 4 * made.rows
    usage = SimpleNamespace(free=2 * size - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(RunError, match=r"expected at most 50% of them"):
        import_upload(made.service, made.write())
    assert not (made.service.folder / "uploads/bank/1").exists()


def test_a_full_disk_is_an_error_and_not_the_end_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    made = StoredFederation(tmp_path)
    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(RunError, match="No space left on device"):
        import_upload(made.service, made.write())
    assert not list((made.service.folder / "uploads/bank/1").glob("*views*"))


def test_versions_that_are_never_complete_do_not_fill_the_disk(stored: StoredFederation) -> None:
    folder = stored.service.folder
    for version in range(2, 6):
        manifest, chunks = stored.upload(version=version)
        UploadStore(folder, manifest).add(0, *chunks[0])
    versions = [store.manifest.version for store in stored_uploads(folder, "bank")]
    assert versions == [5, 1] and found(stored).manifest.version == 1


def test_rows_are_erased_in_parts(
    stored: StoredFederation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload_store, "ERASED_BYTES", 70)
    message = rows(*range(9))
    withdraw(stored.service.folder, stored.config.signing_key, "bank", message, print)
    stored_views = np.fromfile(stored.service.folder / "uploads/bank/1/views.f16", np.float16)
    assert not stored_views[: 9 * 15].any() and stored_views[9 * 15 :].any()


def test_reading_a_deleted_upload_does_not_create_it(stored: StoredFederation) -> None:
    store = found(stored)
    shutil.rmtree(stored.service.folder / "uploads/bank/1")
    with pytest.raises(RunError, match="cannot be read"):
        store.views()
    assert not (stored.service.folder / "uploads/bank/1").exists()
    assert stored_uploads(stored.service.folder, "bank") == []


def test_other_folders_beside_versions_are_ignored(stored: StoredFederation) -> None:
    uploads = stored.service.folder / "uploads/bank"
    shutil.copytree(uploads / "1", uploads / "1.backup")
    assert [store.manifest.version for store in stored_uploads(stored.service.folder, "bank")] == [
        1
    ]
    import_upload(stored.service, stored.write(version=2))


class Offers:
    """A transport to a party whose offer is always the same."""

    def __init__(self, offer: UploadOffer) -> None:
        self.offer = offer

    def hello(self) -> Hello:
        return Hello(0, "process", False, 10, "", SESSION)

    def request(self, message: Message) -> Future[Message]:
        reply: Message = Done(message.request_id, 0)
        if isinstance(message, AskUpload):
            reply = dataclasses.replace(self.offer, request_id=message.request_id)
        future = Future[Message]()
        future.set_result(reply)
        return future


def receiver(
    made: StoredFederation,
    offer: UploadOffer,
    log: Any = print,
    upload: float = 3600.0,
) -> UploadReceiver:
    alignment = made.service.alignment
    assert alignment is not None
    transport: Any = Offers(offer)
    config = dataclasses.replace(made.config, timeouts=TimeoutConfig(join=60, upload=upload))
    party, match = RemoteParty("bank", transport), alignment.matches["bank"]
    return UploadReceiver(party, match, config, log)


@pytest.mark.parametrize(
    "offer",
    [
        UploadOffer(0, 2, 1.0, "{", ""),
        UploadOffer(0, 2, 1.0, "{}", "no"),
        UploadOffer(0, 2, 1.0, "[" * 9999, ""),
    ],
)
def test_a_party_does_not_prevent_a_training_on_its_stored_upload(
    stored: StoredFederation, offer: UploadOffer
) -> None:
    events = list[Any]()
    store = receiver(stored, offer, events.append).receive(torch.zeros(0), threading.Event())
    assert store is not None and store.manifest.version == 1
    assert [each["event"] for each in events] == ["upload_rejected", "stored_upload_used"]


@pytest.mark.parametrize(
    ("given", "shown"), [(math.nan, 0.0), (math.inf, 0.0), (-3.0, 0.0), (9.0, 1.0), (0.5, 0.5)]
)
def test_the_progress_of_a_party_is_a_share(tmp_path: Path, given: float, shown: float) -> None:
    made = receiver(StoredFederation(tmp_path), UploadOffer(0, 0, given, "", ""))
    assert made._try(torch.zeros(0)) is None and made.progress == shown


class Trickle(Offers):
    """A party whose encoder is nearly trained, forever."""

    def request(self, message: Message) -> Future[Message]:
        self.offer = dataclasses.replace(self.offer, progress=self.offer.progress + 1e-4)
        return super().request(message)


@pytest.mark.parametrize("kind", [Offers, Trickle])
def test_a_party_without_progress_does_not_block_a_run(
    tmp_path: Path, kind: type[Offers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "Offers", kind)
    events = list[Any]()
    offer = UploadOffer(0, 0, 0.5, "", "")
    made = receiver(StoredFederation(tmp_path), offer, events.append, upload=0.5)
    stop = threading.Event()
    timer = threading.Timer(20, stop.set)
    timer.start()
    with pytest.raises(RunError, match=r"'bank' has made no progress for 0.5 s; .*timeouts.upload"):
        made.receive(torch.zeros(0), stop)
    timer.cancel()
    assert "no progress" in made.problem
    assert [(each["event"], each["party"]) for each in events] == [("upload_late", "bank")]


def test_a_party_that_trickles_chunks_does_not_block_a_run(tmp_path: Path) -> None:
    stored = StoredFederation(tmp_path, rows=1000)
    manifest, chunks = stored.upload()
    made = receiver(stored, UploadOffer(0, 1, 1.0, manifest.to_json(), ""), upload=0.2)
    transport: Any = made._party.transport
    answer = transport.request

    def slow(message: Message) -> Future[Message]:
        if not isinstance(message, AskChunk):
            return answer(message)  # type: ignore[no-any-return]
        time.sleep(0.15)
        future = Future[Message]()
        future.set_result(UploadChunk(message.request_id, *chunks[message.number]))
        return future

    transport.request = slow
    with pytest.raises(RunError, match="no progress"):
        made.receive(torch.zeros(0), threading.Event())
    assert find_upload(stored.service.folder, "bank", SESSION) is None


def test_replies_in_prediction_have_the_width_of_any_encoder(stored: StoredFederation) -> None:
    n_rows, width = 4096, 4096
    asked = EmbedRows(1, "caller", ("plain",), torch.zeros(n_rows, dtype=torch.int32))
    hello = Hello(0, "", False, 0, "", "")
    needed = n_rows * width * 4
    predicting = Hello(0, "", False, 0, "", "", "prediction")
    assert _reply_limit(stored.config)(asked, predicting) > needed
    assert _reply_limit(stored.config)(asked, hello) < needed


# Terms, withdrawals and heads.


@pytest.mark.slow
def test_withdrawing_row_by_row_does_not_block_a_training(federation: LocalFederation) -> None:
    session, left = federation.match().matches["shop"].session.hex(), list(range(N_ROWS - 40))

    class Withdrawing(threading.Event):
        def is_set(self) -> bool:
            # Each step of a training, once the first one has begun.
            if federation.events("run_started") and left:
                message = rows(left.pop(), session=session)
                withdraw(federation.coordinator, None, "shop", message, lambda event: None)
            return super().is_set()

    assert federation.run(Withdrawing()).evaluation is not None
    assert len(federation.events("upload_changed")) == MAX_RESTARTS + 1
    manifest = federation.head.manifest()
    assert manifest["parties"] == ["bank"] and manifest["left_out"] == ["shop"]
    assert "withdrawn" in manifest["suspicious"]["shop"]
    # A later training uses the rows that are left.
    left.clear()
    federation.run(retrain=True, offline=True)
    assert federation.head.manifest()["parties"] == ["bank", "shop"]


def test_a_withdrawn_version_answers_no_prediction(federation: LocalFederation) -> None:
    federation.run()
    inputs = federation.services["shop"].inputs
    predictor = PartyPredictor(inputs, PredictionLimits(), lambda event: None)
    transport = InProcessTransport(predictor.endpoint.hello, predictor.endpoint.handle)
    path = federation.folder / "prediction.json"
    ids = ["r1", "r2", "r3"]
    match_parties({"shop": transport}, ids, ["ids"], MatchingConfig(), path, print, end=False)
    transport.request(OpenPrediction(FIRST, "encoder/1")).result(60)

    def ask_rows(number: int) -> RowEmbeddings:
        handles = torch.arange(3, dtype=torch.int32)
        reply = transport.request(EmbedRows(FIRST + number, "caller", ("plain",), handles))
        found = reply.result(60)
        assert isinstance(found, RowEmbeddings), found
        return found

    assert len(ask_rows(1).values) == 3
    record_withdrawal(inputs.folder, withdraw_version(inputs.folder))
    refused = ask_rows(2)
    assert refused.row_status.tolist() == [REFUSED] * 3 and not len(refused.values)
    assert refused.refusal == WITHDRAWN


def test_an_error_with_one_party_does_not_protect_the_uploads_of_others(tmp_path: Path) -> None:
    made, events = StoredFederation(tmp_path), list[Any]()
    import_upload(made.service, made.write(terms=UploadTerms(expires="9999-01-01")))
    folder = made.service.folder
    path = folder / "uploads/bank/1/upload.json"
    path.write_text(path.read_text().replace("9999-01-01", "2020-01-01"))
    (folder / "uploads/acme/1").mkdir(parents=True)
    (folder / "uploads/acme/1/upload.json").write_bytes(b"\xff")
    peers = PeerVerifier(made.config.tls.ca_certificate, made.config.revocation_list)
    enforce_terms(folder, peers, events.append)
    assert [each["event"] for each in events] == ["terms_not_enforced", "upload_expired"]
    assert events[0]["party"] == "acme" and not path.exists()


def test_a_stand_in_is_not_usable_after_a_withdrawal(tmp_path: Path) -> None:
    made = StoredFederation(tmp_path)
    import_upload(made.service, made.write(terms=UploadTerms(stand_in=True)))
    stand_in = StandIn(found(made), torch.arange(10))
    assert stand_in.usable and "days old" in stand_in.note
    message = Withdraw(0, "", 1, True, torch.zeros(0, dtype=torch.int32))
    withdraw(made.service.folder, made.config.signing_key, "bank", message, print)
    assert not stand_in.usable


@pytest.mark.slow
def test_a_head_that_is_saved_during_a_withdrawal_is_discarded(
    federation: LocalFederation, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = federation.match().matches["shop"].session.hex()
    save, receipts = TrainedHeads.save, list[Any]()

    def save_during_withdrawal(self: TrainedHeads, *args: Any) -> None:
        if not receipts:
            message = rows(1, session=session)
            receipts.append(withdraw(federation.coordinator, None, "shop", message, print))
        save(self, *args)

    monkeypatch.setattr(TrainedHeads, "save", save_during_withdrawal)
    assert federation.run().evaluation is not None
    assert json.loads(receipts[0].manifest)["heads"] == []
    assert len(federation.events("upload_changed")) == 1
    assert federation.head.manifest()["encoders"]["shop"]["withdrawn"] == 1


def test_going_back_to_a_head_of_withdrawn_rows_is_refused(federation: LocalFederation) -> None:
    load_signing_key(federation.coordinator, None)
    federation.run()
    federation.run(retrain=True, offline=True)
    session = federation.match().matches["shop"].session.hex()
    withdraw(federation.coordinator, None, "shop", rows(1, 2, session=session), print)
    config = federation.config()
    with pytest.raises(RunError, match="shop has withdrawn 2 rows since.*--anyway"):
        use_head(config)
    assert federation.head.path.name == "2"
    (federation.coordinator / "uploads/bank/revoked.json").write_text("{}")
    with pytest.raises(RunError, match="certificate of bank is revoked"):
        use_head(config)
    assert use_head(config, anyway=True).path.name == "1"


# Two processes in one folder.


def test_two_processes_do_not_train_the_same_head(federation: LocalFederation) -> None:
    federation.run()
    head = HeadStore(federation.coordinator).in_training(True)
    assert head is not None
    with (
        file_lock(head / "training.lock"),
        pytest.raises(RunError, match="another process trains this head"),
    ):
        federation.run(offline=True)


def test_a_release_is_not_lost_beside_a_delivery(tmp_path: Path) -> None:
    folder = RunDir(tmp_path).create()
    stores = [ReleaseStore(folder) for _ in range(2)]
    record = stores[0].release("shop", {"party": "shop", "run": "run"}, {})

    def deliver() -> None:
        for _ in range(20):
            stores[1].mark_delivered("shop", record.number)

    thread = threading.Thread(target=deliver)
    thread.start()
    newest = [stores[0].revoke("shop", "test")]
    newest += [stores[0].release("bank", {"party": "bank", "run": "run"}, {}) for _ in range(20)]
    thread.join()
    records = stores[0].records()
    assert records["shop"] == newest[0] and records["bank"] == newest[-1]
    assert isinstance(codec.decode(stores[0].path("shop").read_bytes()), Release)
