"""Withdrawal: what a party withdraws is in no batch, no answer and no file of the coordinator."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor

from tests.upload.file_federation import (
    SESSION,
    FileFederation,
    StoredFederation,
    certificates,
    tls,
)
from tests.upload.local_federation import N_ROWS
from xvfl.certs import PeerVerifier
from xvfl.certs.signed_document import MAX_LINE_BYTES, sign_document
from xvfl.config import UploadTerms
from xvfl.errors import CertificateError, DataWarning, InputError, RunError, WireError
from xvfl.federation.predict_in_time import TimelyBatch
from xvfl.federation.upload.stored_party import StoredParty
from xvfl.model.run_dir import RunDir
from xvfl.service.listener import listen
from xvfl.service.prediction.stand_in import StandIn, add_stand_ins
from xvfl.service.release import verify_release
from xvfl.service.uploads.file_exchange import (
    WITHDRAWAL,
    export_withdrawal,
    import_upload,
    import_withdrawal,
)
from xvfl.service.uploads.party_encoder import allow_next_version, current_version, load_parts
from xvfl.service.uploads.party_withdrawal import (
    read_receipt,
    record_withdrawal,
    send_withdrawal,
    store_receipt,
    withdraw_rows,
    withdraw_version,
)
from xvfl.service.uploads.upload_store import UploadStore, find_upload
from xvfl.service.uploads.withdrawals import enforce_terms, remember_certificate, withdraw
from xvfl.service.uploads.withdrawn import request_digest
from xvfl.wire import codec
from xvfl.wire.messages import AskChunk, AskUpload, ErrorReply, Receipt, UploadStored, Withdraw

NO_ROWS = torch.zeros(0, dtype=torch.int32)
FIRST = 2**60
"""A request id above all earlier ones."""


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[FileFederation]:
    made = FileFederation(tmp_path)
    yield made
    made.close()


@pytest.fixture
def stored(tmp_path: Path) -> StoredFederation:
    made = StoredFederation(tmp_path)
    import_upload(made.service, made.write())
    return made


def rows(*handles: int, session: str = SESSION) -> Withdraw:
    return Withdraw(0, session, 0, False, torch.tensor(handles, dtype=torch.int32))


def version(number: int, everything: bool = False) -> Withdraw:
    return Withdraw(0, "", number, everything, NO_ROWS)


def apply(stored: StoredFederation, message: Withdraw, party: str = "bank") -> dict[str, Any]:
    """Withdraw; return the statement of the receipt."""
    key, log = stored.config.signing_key, stored.service.log
    receipt = withdraw(stored.service.folder, key, party, message, log)
    return verify_release(receipt, stored.certs / "coordinator.release.pub")


def peers(stored: StoredFederation) -> PeerVerifier:
    return PeerVerifier(stored.config.tls.ca_certificate, stored.config.revocation_list)


def found(stored: StoredFederation) -> UploadStore | None:
    return find_upload(stored.service.folder, "bank", SESSION)


def files_with(folder: RunDir, data: bytes) -> list[Path]:
    """Return the files of a folder that contain bytes."""
    paths = [path for path in folder.path.rglob("*") if path.is_file()]
    return [path for path in paths if data in path.read_bytes()]


def embeddings(store: UploadStore, handle: int) -> list[bytes]:
    """Return the bytes of each uploaded view of a row."""
    return [view.numpy().tobytes() for view in store.views()[handle]]


def test_withdrawn_rows_are_in_no_batch_and_no_file(
    federation: FileFederation, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, list[Tensor]] = {"bank": [], "shop": []}
    embed = StoredParty.embed

    def record(self: StoredParty, handles: Tensor, *rest: Any, **more: Any) -> Tensor:
        asked[self.name].append(handles)
        return embed(self, handles, *rest, **more)

    monkeypatch.setattr(StoredParty, "embed", record)
    federation.run()
    folder, match = federation.coordinator, federation.match().matches["shop"]
    session, gone = match.session.hex(), torch.cat(asked["shop"])[:3].tolist()
    store = find_upload(folder, "shop", session)
    assert store is not None
    # Copies without any observed feature are equal for all rows.
    others = {each for row in set(range(N_ROWS)) - set(gone) for each in embeddings(store, row)}
    secret = {each for row in gone for each in embeddings(store, row)} - others
    assert len(secret) >= 3 and all(files_with(folder, each) for each in secret)
    message = rows(*gone, session=session)
    receipt = withdraw(folder, federation.config().signing_key, "shop", message, print)
    statement = verify_release(receipt, federation.certs / "coordinator.release.pub")
    run = federation.head.manifest()["run"]
    assert statement["rows"] == 3 and [each["run"] for each in statement["heads"]] == [run]
    assert not any(files_with(folder, each) for each in secret)

    asked["shop"].clear()
    federation.run(retrain=True, offline=True)
    seen = set(torch.cat(asked["shop"]).tolist())
    assert not seen & set(gone) and len(seen) > N_ROWS / 2
    # The new head has left them out.
    again = withdraw(folder, federation.config().signing_key, "shop", message, print)
    heads = verify_release(again, federation.certs / "coordinator.release.pub")["heads"]
    assert [each["run"] for each in heads] == [run]
    assert federation.head.manifest()["encoders"]["shop"]["withdrawn"] == 3


def test_a_training_starts_again_without_the_rows(federation: FileFederation) -> None:
    shop = federation.match().matches["shop"].session.hex()

    class AfterThreeSteps(Event):
        checks = 0

        def is_set(self) -> bool:
            # Of the training, once it has begun.
            self.checks += bool(federation.events("run_started"))
            if self.checks == 3:
                key = federation.config().signing_key
                withdraw(federation.coordinator, key, "shop", rows(1, 2, session=shop), print)
            return super().is_set()

    assert federation.run(AfterThreeSteps()).evaluation is not None
    assert len(federation.events("upload_changed")) == 1
    assert len(federation.events("run_started")) == 2 and not federation.events("resumed")
    assert federation.head.manifest()["encoders"]["shop"]["withdrawn"] == 2


def test_a_checkpoint_that_learned_from_the_rows_is_not_resumed(federation: FileFederation) -> None:
    class AfterEpoch(Event):
        def is_set(self) -> bool:
            return bool(federation.events("epoch"))

    federation.run(AfterEpoch())
    (head,) = (federation.coordinator / "heads").iterdir()
    assert (head / "checkpoint.safetensors").is_file()
    shop = federation.match().matches["shop"].session.hex()
    message, key = rows(5, session=shop), federation.config().signing_key
    withdraw(federation.coordinator, key, "shop", message, print)
    assert not (head / "checkpoint.safetensors").is_file()
    federation.run(offline=True)
    assert not federation.events("resumed")


def test_rows_do_not_come_back_with_a_chunk(stored: StoredFederation) -> None:
    apply(stored, rows(1, 9))
    _, chunks = stored.upload()
    (stored.service.folder / "uploads/bank/1/chunks.json").unlink()
    import_upload(stored.service, stored.write())
    store = found(stored)
    assert store is not None and store.withdrawn == [1, 9]
    assert store.row_status().tolist() == [2, 0, 2, 2, 2, 2, 2, 2, 2, 0]
    assert not store.views()[[1, 9]].any() and torch.equal(store.views()[:1], chunks[0][1][:1])
    assert not files_with(stored.service.folder, chunks[0][1][1, 0].numpy().tobytes())
    # Nor with a new version of the same alignment.
    import_upload(stored.service, stored.write(version=2))
    newer = found(stored)
    assert newer is not None and newer.manifest.version == 2
    assert not newer.views()[[1, 9]].any() and not newer.row_status()[[1, 9]].any()


def test_an_open_store_notices_a_withdrawal(stored: StoredFederation) -> None:
    store = found(stored)
    assert store is not None and not store.changed
    apply(stored, rows(3))
    assert store.changed and store.row_status()[3] == 0 and not store.views()[3].any()


def test_a_withdrawn_version_is_deleted_and_not_stored_again(stored: StoredFederation) -> None:
    store, path = found(stored), stored.write()
    assert store is not None
    statement = apply(stored, version(1))
    assert statement["deleted_versions"] == [1] and found(stored) is None
    assert store.problem == "the party withdrew it"
    assert not (stored.service.folder / "uploads/bank/1").exists()
    with pytest.raises(RunError, match="the party withdrew it"):
        import_upload(stored.service, path)
    with pytest.raises(WireError, match="the party withdrew it"):
        store.add(0, *stored.upload()[1][0])
    import_upload(stored.service, stored.write(version=2))
    assert found(stored) is not None


def test_everything_is_withdrawn_up_to_a_version(stored: StoredFederation) -> None:
    import_upload(stored.service, stored.write(version=2))
    assert apply(stored, version(2, everything=True))["deleted_versions"] == [1, 2]
    assert found(stored) is None
    import_upload(stored.service, stored.write(version=3))
    # The same request again does not delete what was uploaded since.
    assert apply(stored, version(2, everything=True))["deleted_versions"] == []
    assert found(stored) is not None


@pytest.mark.parametrize(
    "message",
    [
        rows(),
        rows(10),
        rows(-1),
        rows(0, session="ef" * 16),
        version(-1),
        replace(rows(0), version=1),
        replace(rows(0), everything=True),
        replace(rows(0), handles=torch.zeros(1)),
        replace(rows(0), handles=torch.zeros(1, 1, dtype=torch.int32)),
    ],
)
def test_an_invalid_withdrawal_changes_nothing(stored: StoredFederation, message: Withdraw) -> None:
    with pytest.raises(WireError, match="Withdraw: "):
        apply(stored, message)
    store = found(stored)
    assert store is not None and bool((store.row_status() == 2).all())


def test_a_party_withdraws_its_own_rows_only(stored: StoredFederation) -> None:
    apply(stored, rows(0), party="shop")
    apply(stored, version(1, everything=True), party="shop")
    store = found(stored)
    assert store is not None and store.withdrawn == []


def test_withdrawal_over_tls(stored: StoredFederation, tmp_path: Path) -> None:
    config = replace(stored.config, listen="localhost:0")
    secret = embeddings(found(stored), 4)  # type: ignore[arg-type]
    with listen(config, stored.service.log) as server:
        address = f"localhost:{server.port}"
        party = PartyAt(stored, "bank", address)
        receipt = party.send(rows(4))
        folder, key = RunDir(tmp_path / "bank").create(), stored.certs / "coordinator.release.pub"
        statement = store_receipt(folder, "bank", receipt, key, request_digest(rows(4)))
        assert statement["rows"] == 1 and not statement["runs"]
        (kept,) = (folder / "receipts").iterdir()
        assert verify_release(read_receipt(kept), key)["party"] == "bank"
        assert not any(files_with(stored.service.folder, each) for each in secret)
        with pytest.raises(RunError, match="expected handles from 0 to 9"):
            party.send(rows(10))
        # No other request is answered without a stream, and no stranger.
        reply = party.call(AskUpload(1))
        assert isinstance(reply, ErrorReply) and "Hello" in reply.text
        stored.authority.issue("stranger")
        stranger = PartyAt(stored, "stranger", address).call(rows(4))
        assert isinstance(stranger, ErrorReply) and "does not accept" in stranger.text
        stored.authority.revoke("bank")
        revoked = party.call(rows(4))
        assert isinstance(revoked, ErrorReply) and "revoked" in revoked.text
    assert (stored.service.folder / "peers/bank.pem").is_file()


class PartyAt:
    """A party's command line beside its process."""

    def __init__(self, stored: StoredFederation, name: str, address: str) -> None:
        from tests.upload.file_federation import party_config

        table = stored.folder / "table.csv"
        self._config = party_config(stored.certs, table, stored.folder / name, name)
        self._config = replace(self._config, coordinator=address)

    def send(self, message: Withdraw) -> Receipt:
        return send_withdrawal(self._config, message)

    def call(self, message: Any) -> Any:
        from xvfl.wire.client import call_coordinator

        config = self._config
        return call_coordinator(config.coordinator, config.tls, message, 15, lambda *proof: None)


def test_withdrawal_by_file(stored: StoredFederation, tmp_path: Path) -> None:
    party = PartyAt(stored, "bank", "localhost:1")._config
    path, receipt = tmp_path / "bank.withdrawal", tmp_path / "receipt"
    export_withdrawal(party, rows(2, 3), path)
    assert import_withdrawal(stored.service, path, receipt) == "bank"
    store = found(stored)
    assert store is not None and store.withdrawn == [2, 3]
    key = stored.certs / "coordinator.release.pub"
    assert store_receipt(RunDir(tmp_path / "bank"), "bank", read_receipt(receipt), key)["rows"] == 2
    path.write_text(path.read_text().replace('"request": "', '"request":  "'))
    with pytest.raises(RunError, match="was changed"):
        import_withdrawal(stored.service, path, receipt)
    export_withdrawal(replace(party, tls=tls(stored.certs, "shop")), rows(5), path)
    assert import_withdrawal(stored.service, path, receipt) == "shop"
    assert store.row_status()[5] == 2


def test_a_withdrawal_is_not_sent_to_a_revoked_coordinator(stored: StoredFederation) -> None:
    config = replace(stored.config, listen="localhost:0", revocation_list=None)
    with listen(config, stored.service.log) as server:
        party = PartyAt(stored, "bank", f"localhost:{server.port}")
        party.send(rows(4))
        stored.authority.revoke("coordinator")
        with pytest.raises(CertificateError, match="the coordinator: .* is revoked"):
            party.send(rows(5))
    store = found(stored)
    assert store is not None and store.withdrawn == [4]


def test_a_withdrawal_by_file_of_a_revoked_party_is_rejected(
    stored: StoredFederation, tmp_path: Path
) -> None:
    path = tmp_path / "bank.withdrawal"
    export_withdrawal(PartyAt(stored, "bank", "localhost:1")._config, rows(2), path)
    stored.authority.revoke("bank")
    with pytest.raises(RunError, match="revoked"):
        import_withdrawal(stored.service, path, tmp_path / "receipt")


@pytest.mark.parametrize("signer", ["bank", "stranger"])
def test_nothing_is_parsed_before_the_signature_is_checked(
    stored: StoredFederation, tmp_path: Path, signer: str
) -> None:
    path, others = tmp_path / "file", certificates(tmp_path / "others")
    others.issue("stranger")
    folder = stored.certs if signer == "bank" else tmp_path / "others"
    line = sign_document(tls(folder, signer), WITHDRAWAL, {}).partition(b"\n")[0]
    path.write_bytes(line + b"\n" + b"[" * 2**20)
    reason = "was changed" if signer == "bank" else "not signed by the authority"
    with pytest.raises(RunError, match=reason):
        import_withdrawal(stored.service, path, tmp_path / "receipt")
    path.write_bytes(b"[" * 2**20)
    with pytest.raises(RunError, match=f"{MAX_LINE_BYTES} of them in its first line"):
        import_withdrawal(stored.service, path, tmp_path / "receipt")


def test_a_receipt_is_verified(stored: StoredFederation, tmp_path: Path) -> None:
    key = stored.certs / "coordinator.release.pub"
    receipt = withdraw(stored.service.folder, stored.config.signing_key, "bank", rows(0), print)
    folder = RunDir(tmp_path / "bank").create()
    changed = replace(receipt, manifest=receipt.manifest.replace('"rows": 1', '"rows": 9'))
    with pytest.raises(WireError, match="signature is invalid"):
        store_receipt(folder, "bank", changed, key)
    with pytest.raises(WireError, match="party 'shop'"):
        store_receipt(folder, "shop", receipt, key)
    with pytest.raises(WireError, match="for this withdrawal"):
        store_receipt(folder, "bank", receipt, key, request_digest(rows(1)))
    outside = receipt.manifest.replace(request_digest(rows(0)), "../../../outside")
    for statement in (outside, "[]", "{}", "[" * 5000, "null"):
        with pytest.raises(WireError, match="Receipt"):
            store_receipt(folder, "bank", replace(receipt, manifest=statement), None)
    path = tmp_path / "file"
    path.write_bytes(codec.encode(receipt)[:-9])
    with pytest.raises(RunError, match="not a receipt"):
        read_receipt(path)


def test_an_expired_upload_is_deleted(stored: StoredFederation) -> None:
    import_upload(stored.service, stored.write(version=2, terms=UploadTerms(expires="9999-01-01")))
    store = found(stored)
    assert store is not None and store.manifest.version == 2
    path = stored.service.folder / "uploads/bank/2/upload.json"
    path.write_text(path.read_text().replace("9999-01-01", "2020-01-01"))
    first = found(stored)
    assert first is not None and first.manifest.version == 1
    events = list[Any]()
    enforce_terms(stored.service.folder, peers(stored), events.append)
    assert [each["event"] for each in events] == ["upload_expired"]
    assert not path.parent.exists()


def test_a_revoked_partys_upload_is_not_used(stored: StoredFederation) -> None:
    folder, events = stored.service.folder, list[Any]()

    def enforce() -> str:
        events.clear()
        enforce_terms(folder, peers(stored), events.append)
        return ",".join(each["event"] for each in events)

    store = found(stored)
    assert store is not None and enforce() == ""
    stored.authority.revoke("bank")
    assert enforce() == "upload_suspended" and enforce() == ""
    assert found(stored) is None and "revoked" in store.problem and store.changed
    # With a new certificate it is the party's upload again.
    for suffix in ("crt", "key"):
        (stored.certs / f"bank.{suffix}").unlink()
    stored.authority.issue("bank")
    remember_certificate(folder, "bank", (stored.certs / "bank.crt").read_bytes(), print)
    assert enforce() == "upload_resumed"
    assert found(stored) is not None and not store.problem


def test_terms_may_allow_use_after_revocation(tmp_path: Path) -> None:
    made = StoredFederation(tmp_path)
    import_upload(made.service, made.write(terms=UploadTerms(keep_after_revocation=True)))
    made.authority.revoke("bank")
    enforce_terms(made.service.folder, peers(made), print)
    assert found(made) is not None


def test_an_interrupted_withdrawal_is_finished(stored: StoredFederation) -> None:
    from xvfl.service.uploads.withdrawn import Withdrawn

    Withdrawn(RunDir(stored.service.folder / "uploads/bank")).add(rows(6))
    secret = stored.upload()[1][1][1][2, 0].numpy().tobytes()
    assert files_with(stored.service.folder, secret)
    enforce_terms(stored.service.folder, peers(stored), print)
    assert not files_with(stored.service.folder, secret)


@pytest.mark.slow
def test_a_party_leaves_withdrawn_rows_out_of_the_next_version(federation: FileFederation) -> None:
    federation.run()
    inputs = federation.services["shop"].inputs
    message = withdraw_rows(inputs, ["r3", " R17 ", "shop 1"])
    assert message is not None and len(message.handles) == 2
    with pytest.raises(InputError, match="no id 'r999'"):
        withdraw_rows(inputs, ["r999"])
    assert allow_next_version(inputs.folder) == 2
    before = federation.events("encoder_training")[-1]["rows"]
    federation.services["shop"].close()
    shop = federation.services["shop"] = federation.start_party("shop")
    while not shop.status()["upload_rows"]:
        time.sleep(0.01)
    federation.run(retrain=True)
    started = federation.events("encoder_training")[-1]
    assert started["version"] == 2 and started["rows"] >= before - 2
    session = federation.match().matches["shop"].session.hex()
    store = find_upload(federation.coordinator, "shop", session)
    assert store is not None
    assert (store.manifest.version, store.manifest.withdrawn) == (2, 2)
    assert not store.views()[message.handles.tolist()].any()
    assert federation.head.manifest()["encoders"]["shop"]["version"] == 2


def test_a_new_version_needs_the_operator(federation: FileFederation) -> None:
    folder = federation.services["shop"].inputs.folder
    with pytest.raises(RunError, match="not trained yet"):
        allow_next_version(folder)
    federation.run()
    transport = federation.transports()["shop"]
    requests = [AskUpload(FIRST), AskChunk(FIRST + 1, 2, 0), UploadStored(FIRST + 2, 2, "0" * 32)]
    for request in requests:
        transport.request(request).result()
    federation.services["shop"].close()
    federation.services["shop"] = federation.start_party("shop")
    federation.run(retrain=True)
    assert current_version(folder) == 1 and not (folder / "encoders/2").exists()
    # The operator allows it: the next start trains it, the first encoder stays.
    assert allow_next_version(folder) == 2
    with pytest.raises(RunError, match="not trained yet"):
        allow_next_version(folder)
    federation.services["shop"].close()
    federation.services["shop"] = federation.start_party("shop")
    reply = federation.transports()["shop"].request(AskChunk(FIRST + 3, 1, 0)).result()
    assert isinstance(reply, ErrorReply)
    federation.services["shop"].close()
    load_parts(folder, 1)


def test_a_withdrawn_version_is_not_offered_again(federation: FileFederation) -> None:
    federation.run()
    folder = federation.services["shop"].inputs.folder
    message = withdraw_version(folder)
    assert (message.version, message.everything) == (1, True)
    with pytest.raises(InputError, match="from 1 to 1"):
        withdraw_version(folder, 2)
    record_withdrawal(folder, message)
    reply = federation.transports()["shop"].request(AskChunk(FIRST, 1, 0)).result()
    assert isinstance(reply, ErrorReply) and "has withdrawn" in reply.text
    key = federation.config().signing_key
    withdraw(federation.coordinator, key, "shop", message, print)
    federation.services["shop"].close()
    federation.services["shop"] = federation.start_party("shop")
    with pytest.raises(RunError, match="'shop'"):
        federation.run(retrain=True)


@pytest.mark.slow
def test_withdrawn_rows_stay_out_of_a_new_alignment(federation: FileFederation) -> None:
    shop = federation.services["shop"]
    assert withdraw_rows(shop.inputs, ["shop 1"]) is None
    message = withdraw_rows(shop.inputs, ["r3"])
    assert message is not None
    shop.close()
    # Ids are matched again, under other handles, and one more id has a label now.
    for name in ("shop/alignment.json", "coordinator/alignment.json"):
        (federation.folder / name).unlink()
    federation.labels = pd.concat([federation.labels, pd.Series([0], ["shop 1"], name="y")])
    federation.alignment, federation.services["shop"] = None, federation.start_party("shop")
    (federation.folder / "bank/alignment.json").unlink()
    federation.services["bank"].close()
    federation.services["bank"] = federation.start_party("bank")
    match = federation.match().matches["shop"]
    assert match.session.hex() != message.session
    with pytest.warns(DataWarning, match="1 rows have no observed feature"):
        federation.run()
    store = find_upload(federation.coordinator, "shop", match.session.hex())
    assert store is not None and store.manifest.rows == N_ROWS + 1
    gone = [int(match.handles[federation.labels.index.get_loc(each)]) for each in ("r3", "shop 1")]
    assert store.manifest.withdrawn == 2 and not store.views()[gone].any()
    assert not store.row_status()[gone].any()


def test_withdrawn_rows_stand_in_for_no_answer(tmp_path: Path) -> None:
    made = StoredFederation(tmp_path)
    import_upload(made.service, made.write(terms=UploadTerms(stand_in=True)))
    store = found(made)
    assert store is not None
    stand_ins = {0: StandIn(store, torch.arange(10))}
    rows_asked = torch.tensor([3, 4])

    def answer() -> tuple[TimelyBatch, dict[str, Tensor]]:
        return add_stand_ins(TimelyBatch({}, (2, 1, 5)), rows_asked, stand_ins)

    batch, _ = answer()
    assert batch.rows.seen.flatten().tolist() == [True, True] and bool(batch.E.any(-1).all())
    apply(made, rows(4))
    batch, stood_in = answer()
    assert batch.rows.handles.flatten().tolist() == [3, -1] and not batch.E[1].any()
    assert [held.tolist() for held in stood_in.values()] == [[True, False]]
    apply(made, version(1))
    batch, stood_in = answer()
    assert batch.places == () and not stood_in


@pytest.mark.slow
def test_changed_rows_are_uploaded_with_the_same_encoder(federation: FileFederation) -> None:
    folder = federation.services["shop"].inputs.folder
    with pytest.raises(RunError, match="not trained yet"):
        allow_next_version(folder, keep_encoder=True)
    federation.run()
    session = federation.match().matches["shop"].session.hex()
    before = find_upload(federation.coordinator, "shop", session)
    assert before is not None
    federation.services["shop"].close()
    federation.tables["shop"].loc[["r1", "r2"]] += 1.5
    assert allow_next_version(folder, keep_encoder=True) == 2
    shop = federation.services["shop"] = federation.start_party("shop")
    while not shop.status()["upload_rows"]:
        time.sleep(0.01)
    federation.run(retrain=True)
    after = find_upload(federation.coordinator, "shop", session)
    assert after is not None and after.manifest.version == 2
    assert after.manifest.encoder == before.manifest.encoder
    changed = (after.views()[:, 0] != before.views()[:, 0]).any(-1)
    assert 1 <= int(changed.sum()) <= 2
    assert federation.events("upload_received")[-1]["version"] == 2
