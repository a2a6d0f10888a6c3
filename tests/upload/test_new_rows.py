"""New and changed rows of a table, uploaded as a part of the same version."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event

import numpy as np
import pandas as pd
import pytest
import torch

from tests.upload.file_federation import FileFederation, StoredFederation
from tests.upload.local_federation import PARTIES
from xvfl.config import EncoderConfig
from xvfl.errors import RunError, WireError
from xvfl.federation.request_limits import RequestLimits
from xvfl.federation.upload.manifest import Chunk, UploadManifest, chunk_digest
from xvfl.matching import load_party_alignment
from xvfl.model.dashboard.state_folder import describe_coordinator, describe_party
from xvfl.model.run_dir import RunDir
from xvfl.service.config import TimeoutConfig
from xvfl.service.head_store import HeadStore
from xvfl.service.uploads.changed_rows import NEW, NO_ROWS, REPLACED, WITHDRAWN, compare_rows
from xvfl.service.uploads.file_exchange import export_held_out, export_upload, import_upload
from xvfl.service.uploads.party_encoder import allow_new_rows, upload_record
from xvfl.service.uploads.party_withdrawal import withdraw_rows
from xvfl.service.uploads.upload_store import UploadStore, find_upload, stored_uploads
from xvfl.service.uploads.withdrawals import withdraw

LATE = [f"r{i}" for i in range(0, 240, 5)]
"""Rows that the shop gets later: a fifth."""
CHANGED = ["r1", "r2", "r33", "r104"]


class GrowingFederation(FileFederation):
    """A federation whose shop gets rows later."""

    def __init__(self, folder: Path, **more: object) -> None:
        self.whole: pd.DataFrame | None = None
        super().__init__(folder, matched=False, **more)

    def start_party(self, name: str):  # type: ignore[no-untyped-def]
        """Start a party; the shop without its late rows at first."""
        if name == "shop" and self.whole is None:
            whole = self.tables["shop"]
            late = whole.index.isin(LATE)
            self.whole = pd.concat([whole[~late], whole[late]])
            self.tables["shop"] = self.whole[: -len(LATE)]
        return super().start_party(name)

    def restart(self, name: str = "shop") -> None:
        """Stop a party and start it again; wait for its upload if its ids are matched."""
        self.services[name].close()
        service = self.services[name] = self.start_party(name)
        if service._thread is not None:
            service._thread.join()

    def grow(self) -> None:
        """Append the late rows, change others, and match ids again."""
        self.change()
        assert self.whole is not None
        late = self.whole[-len(LATE) :]
        self.tables["shop"] = pd.concat([self.tables["shop"], late])
        self.services["shop"].close()
        (self.folder / "shop/alignment.json").unlink()
        self.alignment = None
        for name in PARTIES:
            (self.folder / f"{name}/alignment.json").unlink(missing_ok=True)
            self.restart(name)
        self.match()

    def change(self) -> None:
        """Change cells of a few rows."""
        table = self.tables["shop"].copy()
        table.loc[CHANGED] = 1.5 - table.loc[CHANGED].fillna(0.0)
        self.tables["shop"] = table

    def upload(self) -> UploadStore:
        """Return the shop's stored upload."""
        store = find_upload(self.coordinator, "shop", self.match().matches["shop"].session.hex())
        assert store is not None
        return store


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[GrowingFederation]:
    made = GrowingFederation(tmp_path)
    yield made
    made.close()


def test_changed_rows_replace_and_new_ones_are_appended(federation: GrowingFederation) -> None:
    federation.run()
    first, shop = federation.upload(), federation.folder / "shop"
    assert (first.manifest.rows, first.manifest.appended) == (192, 192)
    federation.change()
    assert allow_new_rows(RunDir(shop)) == "1.1"
    federation.restart()
    federation.run(retrain=True)
    store, event = federation.upload(), federation.events("upload_received")[-1]
    counts = {name: event[name] for name in ("version", "part", "appended", "replaced", "rows")}
    assert counts == {"version": 1, "part": 1, "appended": 0, "replaced": 4, "rows": 192}
    assert event["bytes"] < first.manifest.n_bytes / 5
    status = federation.services["shop"].status()
    assert (status["upload_part"], status["upload_replaced"]) == (1, 4)
    (about,) = describe_party(shop)["details"]["uploads"]
    assert (about["part"], about["appended"], about["replaced"]) == (1, 0, 4)
    assert describe_coordinator(federation.coordinator.path)["party_upload_replaced"]["shop"] == 4
    heads = HeadStore(federation.coordinator)
    manifests = [RunDir(heads.current.path.parent / n).manifest()["encoders"] for n in "12"]
    assert [each["shop"]["version"] for each in manifests] == [1, 1]
    assert [each["shop"]["digest"] for each in manifests] == [
        first.manifest.digest,
        store.manifest.digest,
    ]
    assert not (federation.coordinator / "uploads/shop/1").exists()


@pytest.mark.slow
def test_the_weights_are_those_of_a_complete_upload(federation: GrowingFederation) -> None:
    federation.run()
    federation.grow()
    allow_new_rows(RunDir(federation.folder / "shop"))
    federation.restart()
    # The bank's ids were matched again too: none of its rows is sent again.
    allow_new_rows(RunDir(federation.folder / "bank"))
    federation.restart("bank")
    federation.run(retrain=True)
    store = federation.upload()
    found = store.manifest
    assert (found.rows, found.appended, found.replaced) == (240, len(LATE), len(CHANGED))
    events = {each["party"]: each for each in federation.events("upload_received")[-2:]}
    assert (events["bank"]["appended"], events["bank"]["replaced"]) == (0, 0)
    weights = federation.head.load_tensors("model.safetensors")[0]
    # The same encoders, secrets and alignments, and no earlier upload.
    for name in PARTIES:
        folder = federation.folder / name
        federation.services[name].close()
        for path in folder.glob("encoders/1/*"):
            if path.name not in ("weights.safetensors", "encoder.json", "learned.safetensors"):
                path.unlink()
        (folder / "encoder_version.json").unlink()
        federation.restart(name)
    first = federation.coordinator
    federation.coordinator = RunDir(federation.folder / "second").create()
    for name in ("secret.key", "alignment.json", "split.json", "heads/2/run_name.json"):
        target = federation.coordinator / name.replace("heads/2", "heads/1")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(first / name, target)
    federation.run()
    complete = federation.upload()
    assert complete.manifest.part == 0 and complete.manifest.appended == 240
    assert torch.equal(complete.views(), store.views())
    assert torch.equal(complete.row_status(), store.row_status())
    again = federation.head.load_tensors("model.safetensors")[0]
    assert weights.keys() == again.keys()
    assert all(torch.equal(weights[key], again[key]) for key in weights)


def test_parts_by_file(federation: GrowingFederation) -> None:
    federation.match()
    service = federation.service()

    def exchange(name: str, number: int) -> Path:
        held_out, out = federation.folder / "list", federation.folder / f"{name}-{number}"
        export_held_out(federation.service(), name, held_out)
        assert export_upload(federation.services[name], held_out, out, Event()) is not None
        return out

    files = [exchange("shop", 0)]
    for number in (1, 2):
        federation.change()
        allow_new_rows(RunDir(federation.folder / "shop"))
        federation.restart()
        files.append(exchange("shop", number))
    import_upload(service, files[0])
    with pytest.raises(RunError, match=r"upload 1\.2: expected one that follows 1, the last one"):
        import_upload(service, files[2])
    before = federation.upload().views().clone()
    import_upload(service, files[1])
    changed = (federation.upload().views() != before).any(2).any(1)
    assert int(changed.sum()) == len(CHANGED)
    import_upload(service, files[2])
    import_upload(service, files[2])
    assert federation.upload().manifest.order == (1, 2)
    for stale in files[:2]:
        with pytest.raises(RunError, match=r"older than version 1\.2"):
            import_upload(service, stale)


def test_withdrawn_rows_do_not_come_back(federation: GrowingFederation) -> None:
    federation.run()
    inputs = federation.services["shop"].inputs
    message = withdraw_rows(inputs, ["r1", "r3"])
    assert message is not None
    withdraw(federation.coordinator, federation.config().signing_key, "shop", message, print)
    federation.grow()
    allow_new_rows(RunDir(federation.folder / "shop"))
    federation.restart()
    allow_new_rows(RunDir(federation.folder / "bank"))
    federation.restart("bank")
    federation.run(retrain=True)
    store = federation.upload()
    found = store.manifest
    assert (found.appended, found.replaced, found.withdrawn) == (len(LATE), len(CHANGED) - 1, 2)
    rows = load_party_alignment(federation.folder / "shop/alignment.json").match.rows
    ids = federation.tables["shop"].index[rows]
    gone = np.flatnonzero(ids.isin(["r1", "r3"]))
    assert len(gone) == 2 and not store.views()[gone].any() and not store.row_status()[gone].any()


def test_a_part_needs_a_stored_upload_and_a_known_alignment(
    federation: GrowingFederation,
) -> None:
    folder = RunDir(federation.folder / "shop")
    with pytest.raises(RunError, match="not stored yet"):
        allow_new_rows(folder)
    federation.run()
    federation.grow()
    with pytest.raises(RunError, match="made no progress for 5 s"):
        federation.run(retrain=True, timeouts=TimeoutConfig(upload=5.0))
    assert federation.events("approval_requested")[-1]["kind"] == "new-rows"
    allow_new_rows(folder)
    with pytest.raises(RunError, match="not stored yet"):
        upload_record(folder, 1).set_stored("0" * 32)
        allow_new_rows(folder)


def test_a_lost_acknowledgement_is_repeated(federation: GrowingFederation) -> None:
    federation.run()
    (federation.folder / "shop/encoders/1/stored.json").unlink()
    federation.restart()
    federation.run(retrain=True)
    assert allow_new_rows(RunDir(federation.folder / "shop")) == "1.1"


def test_a_held_out_row_that_was_learned_from_needs_another_encoder(
    federation: GrowingFederation,
) -> None:
    federation.run()
    federation.labels = pd.concat(
        [federation.labels, pd.Series(1, [f"shop {i}" for i in range(30)], name="y")]
    )
    federation.grow()
    allow_new_rows(RunDir(federation.folder / "shop"))
    federation.restart()
    allow_new_rows(RunDir(federation.folder / "bank"))
    federation.restart("bank")
    with pytest.raises(RunError, match="made no progress for 5 s"):
        federation.run(retrain=True, timeouts=TimeoutConfig(upload=5.0))
    assert "has learned from" in federation.events("approval_requested")[-1]["reason"]


def test_every_release_of_a_row_counts_towards_epsilon(tmp_path: Path) -> None:
    federation = GrowingFederation(tmp_path, encoders={"shop": EncoderConfig(epsilon=2.0)})
    federation.run()
    before = federation.upload().views().clone()
    inputs = federation.services["shop"].inputs
    federation.change()
    allow_new_rows(RunDir(federation.folder / "shop"))
    federation.services["shop"].close()

    def start(limit: float):  # type: ignore[no-untyped-def]
        config = replace(inputs.config, limits=RequestLimits(max_epsilon=limit))
        limited = replace(inputs, source=federation.tables["shop"], config=config)
        service = type(federation.services["shop"])(limited, federation.log.append)
        assert service._thread is not None
        service._thread.join()
        return service

    refused = start(2.5)
    assert "most 2 releases" in federation.events("encoder_failed")[-1]["reason"]
    refused.close()
    federation.services["shop"] = start(3.5)
    federation.run(retrain=True)
    changed = (federation.upload().views() != before).any(2).any(1)
    assert int(changed.sum()) == len(CHANGED)
    assert upload_record(inputs.folder, 1).rows(1)["releases"].max() == 2
    # Back to the first content: it has other noise, and counts again.
    federation.tables["shop"] = inputs.source
    allow_new_rows(inputs.folder)
    federation.services["shop"].close()
    federation.services["shop"] = start(9.0)
    federation.run(retrain=True)
    assert int((federation.upload().views() != before).any(2).any(1).sum()) == len(CHANGED)
    federation.close()


# The coordinator against a part.


def part(
    origin: list[int], before: UploadManifest, **changes: object
) -> tuple[UploadManifest, list[Chunk]]:
    """Draw a part in chunks of four rows."""
    origins = torch.tensor(origin, dtype=torch.int32).split(4)
    chunks = []
    for each in origins:
        sent = int(((each == NEW) | (each == REPLACED)).sum())
        values = torch.rand(sent, 3, 5).half()
        chunks.append((each, values, torch.ones(sent, dtype=torch.uint8)))
    settings = {
        "part": before.part + 1,
        "base": before.digest,
        "chunks": tuple(map(chunk_digest, chunks)),
        "appended": origin.count(NEW),
        "replaced": origin.count(REPLACED),
        "withdrawn": origin.count(WITHDRAWN),
        **changes,
    }
    return replace(before, **settings), chunks  # type: ignore[arg-type]


@pytest.fixture
def stored(tmp_path: Path) -> StoredFederation:
    made = StoredFederation(tmp_path)
    import_upload(made.service, made.write())
    return made


def test_an_interrupted_part_continues_and_replaces_its_base(stored: StoredFederation) -> None:
    folder = stored.service.folder
    first, chunks = stored.upload()
    before = torch.cat([values for _, values, _ in chunks])
    manifest, chunks = part([9, 8, NEW, 6, 5, REPLACED, WITHDRAWN, 2, 1, 0], first)
    UploadStore(folder, manifest).add(1, *chunks[1])
    assert find_upload(folder, "bank", first.session).manifest == first  # type: ignore[union-attr]
    again = UploadStore(folder, manifest)
    assert again.missing == [0, 2]
    for number in again.missing:
        again.add(number, *chunks[number])
    (store,) = stored_uploads(folder, "bank")
    views = store.views()
    kept = [0, 1, 3, 4, 7, 8, 9]
    assert torch.equal(views[kept], before[[9, 8, 6, 5, 2, 1, 0]])
    assert torch.equal(views[2], chunks[0][1][0]) and torch.equal(views[5], chunks[1][1][0])
    assert not views[6].any() and store.row_status().tolist() == [2, 2, 1, 2, 2, 1, 0, 2, 2, 2]
    second, _ = part([0] * 10, manifest)
    UploadStore(folder, second)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"base": "0" * 32}, "follows 1, the last one"),
        ({"part": 2}, "follows 1, the last one"),
        ({"version": 2}, "follows 1, the last one"),
        ({"encoder": "1" * 32}, "expected encoder as before"),
        ({"epsilon": 1.0}, "expected epsilon as before"),
    ],
)
def test_a_part_that_does_not_follow_the_stored_one_is_rejected(
    stored: StoredFederation, changes: dict[str, object], reason: str
) -> None:
    manifest, _ = part(list(range(10)), stored.upload()[0], **changes)
    with pytest.raises(WireError, match=reason):
        UploadStore(stored.service.folder, manifest)
    assert len(stored_uploads(stored.service.folder, "bank")) == 1


@pytest.mark.parametrize("origin", [10, -4, 2**31 - 1, -(2**31)])
def test_origins_outside_the_base_are_rejected(stored: StoredFederation, origin: int) -> None:
    manifest, chunks = part([origin, *range(9)], stored.upload()[0])
    with pytest.raises(WireError, match="expected origins in the part before"):
        UploadStore(stored.service.folder, manifest).add(0, *chunks[0])


def test_other_counts_than_stated_are_rejected(stored: StoredFederation) -> None:
    first = stored.upload()[0]
    manifest, chunks = part([REPLACED, *range(9)], first, appended=1, replaced=0)
    store = UploadStore(stored.service.folder, manifest)
    with pytest.raises(WireError, match="as the manifest states"):
        for number in range(3):
            store.add(number, *chunks[number])
    assert find_upload(stored.service.folder, "bank", first.session).manifest == first  # type: ignore[union-attr]


def test_rows_that_left_the_table_keep_their_count() -> None:
    ids, contents = np.array([7, 8, 9]), np.array([1, 2, 3])
    first = compare_rows(NO_ROWS, ids, contents, [])
    assert first["origin"].tolist() == [NEW] * 3
    second = compare_rows(first, ids[[2, 0]], np.array([3, 5]), [])
    assert second["origin"].tolist() == [2, REPLACED]
    assert second["ids"].tolist() == [9, 7, 8] and second["releases"].tolist() == [1, 2, 1]
    third = compare_rows(second, ids, contents, [0])
    assert third["origin"].tolist() == [WITHDRAWN, NEW, 0]
    assert third["releases"].tolist() == [2, 2, 1]
