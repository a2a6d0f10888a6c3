"""What status and dashboard say of the state folders of a federation by uploads."""

from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from tests.upload.file_federation import SESSION, FileFederation, StoredFederation
from tests.upload.test_withdrawal import apply, rows, version
from xvfl.model.dashboard.run_reader import RunReader
from xvfl.model.dashboard.state_folder import describe_coordinator, describe_party
from xvfl.model.dashboard.status_metrics import status_metrics
from xvfl.model.run_dir import RunDir
from xvfl.service.release_delivery import use_head
from xvfl.service.uploads.file_exchange import import_upload
from xvfl.service.uploads.party_withdrawal import store_receipt
from xvfl.service.uploads.upload_store import REVOKED, find_upload
from xvfl.service.uploads.withdrawals import withdraw
from xvfl.system.files import append_jsonl
from xvfl_serve.http.metrics import to_text


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[FileFederation]:
    """Return a matched federation."""
    made = FileFederation(tmp_path)
    yield made
    made.close()


def states(folder: Path) -> dict[int, str]:
    """Return the state of each head."""
    heads = describe_coordinator(folder)["details"]["heads"]
    return {each["number"]: each["state"] for each in heads}


def of_bank(stored: StoredFederation) -> dict[str, Any]:
    """Return what the coordinator's folder says of the party's upload."""
    found = describe_coordinator(stored.service.folder.path, ["bank"])
    values = {key: each.get("bank") for key, each in found.items() if key.startswith("party_")}
    return {key.removeprefix("party_upload_"): value for key, value in values.items()}


def test_uploads_and_heads_of_a_coordinator(federation: FileFederation) -> None:
    folder = federation.coordinator.path
    assert describe_coordinator(folder) == {}
    waiting = describe_coordinator(folder, ["bank"])
    assert waiting["state"] == "waiting for uploads" and waiting["heads"] == 0
    assert waiting["party_upload_version"] == {"bank": 0}
    federation.run()
    found = describe_coordinator(folder)
    session = federation.match().matches["shop"].session.hex()
    store = find_upload(federation.coordinator, "shop", session)
    assert store is not None
    assert found["party_upload_rows"]["shop"] == store.manifest.rows
    assert found["party_upload_bytes"]["shop"] == store.manifest.n_bytes
    assert found["party_upload_received"] == {"bank": 1.0, "shop": 1.0}
    assert found["party_head_version"] == {"bank": 1, "shop": 1}
    assert (found["state"], found["heads"], found["head"]) == ("finished", 1, 1)
    assert 'xvfl_party_upload_rows{party="shop"} 240.0' in to_text(status_metrics(found))


@pytest.mark.slow
def test_heads_that_are_stopped_current_and_taken_back(federation: FileFederation) -> None:
    folder = federation.coordinator.path
    federation.run()

    class Now(Event):
        def is_set(self) -> bool:
            return len(RunDir(folder / "heads/2").records()) == 1

    federation.run(Now(), retrain=True)
    assert states(folder) == {2: "aborted", 1: "current"}
    federation.run()
    assert states(folder) == {2: "current", 1: "earlier"}
    use_head(federation.config())
    assert states(folder) == {2: "taken back", 1: "current"}
    found = describe_coordinator(folder)
    assert (found["head"], found["heads"]) == (1, 2)


def test_what_left_a_party_and_its_receipts(federation: FileFederation) -> None:
    folder = federation.folder / "shop"
    assert describe_party(federation.folder) == {}
    assert describe_party(folder)["details"]["uploads"] == []
    federation.run()
    (upload,) = describe_party(folder)["details"]["uploads"]
    assert upload["version"] == 1 and upload["rows"] == 240 and upload["left"] == {}
    event = {"time": "2026-11-01T10:00:00Z", "event": "upload_stored", "version": 1}
    append_jsonl(folder / "log.jsonl", event)
    message = rows(1, 2, session=federation.match().matches["shop"].session.hex())
    key = federation.config().signing_key
    receipt = withdraw(federation.coordinator, key, "shop", message, print)
    store_receipt(RunDir(folder), "shop", receipt, federation.certs / "coordinator.release.pub")
    found = describe_party(folder)
    assert found["state"] == "uploaded" and found["receipts"] == 1
    assert found["details"]["uploads"][0]["left"] == {"connection": event["time"]}
    (statement,) = found["details"]["receipts"]
    assert statement["rows"] == 2
    assert statement["heads"] == [federation.head.manifest()["run"]]
    (head,) = describe_coordinator(federation.coordinator.path)["details"]["heads"]
    assert head["withdrawn_since"] == {"shop": 2}
    withdraw(federation.coordinator, key, "shop", version(1), print)
    (head,) = describe_coordinator(federation.coordinator.path)["details"]["heads"]
    assert head["withdrawn_since"] == {"shop": 240}


def test_withdrawn_suspended_and_deleted_uploads(tmp_path: Path) -> None:
    stored = StoredFederation(tmp_path)
    assert of_bank(stored)["version"] == 0
    import_upload(stored.service, stored.write())
    assert of_bank(stored)["suspended"] == of_bank(stored)["withdrawn_rows"] == 0
    apply(stored, rows(1, 3, session=SESSION))
    assert of_bank(stored)["withdrawn_rows"] == 2
    RunDir(stored.service.folder / "uploads/bank").write_json(REVOKED, {"reason": "revoked"})
    assert of_bank(stored)["suspended"] == 1
    apply(stored, version(1))
    assert of_bank(stored)["version"] == 0 and of_bank(stored)["deleted_version"] == 1


def test_state_folders_are_listed_with_their_heads(federation: FileFederation) -> None:
    federation.run()
    listed = {each["name"]: each for each in RunReader(federation.folder).runs()["runs"]}
    assert set(listed) == {"coordinator", "coordinator/heads/1", "bank", "shop"}
    assert listed["coordinator"]["kind"] == "federation"
    assert listed["coordinator"]["state"] == "finished"
    assert listed["coordinator/heads/1"]["parties"]["shop"]["version"] == 1
    assert listed["shop"]["kind"] == "party" and listed["shop"]["state"] == "not uploaded"
    assert set(RunReader(federation.coordinator.path).folders()) == {
        "coordinator",
        "coordinator/heads/1",
    }


def test_links_of_heads_are_not_followed(federation: FileFederation, tmp_path: Path) -> None:
    federation.run()
    other = tmp_path / "other"
    other.mkdir()
    (other / "split.json").write_text("{}")
    (other / "heads").symlink_to(federation.coordinator.path / "heads")
    assert set(RunReader(other).folders()) == {"other"}


def test_damaged_files_are_left_out(federation: FileFederation) -> None:
    federation.run()
    folder = federation.coordinator.path
    (folder / "uploads/shop/1/upload.json").write_text("{")
    (folder / "heads/1/run.json").write_text("[]")
    (federation.folder / "shop/receipts").mkdir()
    (federation.folder / "shop/receipts/a.receipt").write_bytes(b"damaged")
    found = describe_coordinator(folder)
    (head,) = found["details"]["heads"]
    assert found["party_upload_version"]["shop"] == 0 and head["state"] == "current"
    assert describe_party(federation.folder / "shop")["receipts"] == 0
