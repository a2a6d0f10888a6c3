"""Uploads by file: equal to those over a connection, and rejected when anything is wrong."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest
import torch

from tests.upload.file_federation import (
    SESSION,
    FileFederation,
    StoredFederation,
    certificates,
    tls,
)
from tests.upload.local_federation import PARTIES
from xvfl.certs.sealed_file import KEY_BYTES, MAGIC, MAX_HEADER_BYTES
from xvfl.certs.signed_document import sign_document
from xvfl.config import UploadTerms
from xvfl.errors import RunError
from xvfl.model.run_dir import RunDir
from xvfl.service.uploads.file_exchange import (
    HELD_OUT,
    export_held_out,
    export_upload,
    import_upload,
    read_held_out,
)
from xvfl.service.uploads.upload_store import find_upload


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[FileFederation]:
    made = FileFederation(tmp_path)
    yield made
    made.close()


@pytest.fixture
def stored(tmp_path: Path) -> StoredFederation:
    return StoredFederation(tmp_path)


def export(federation: FileFederation, name: str) -> Path:
    """Exchange the held-out list and the upload of a party as files."""
    held_out, out = federation.folder / f"{name}.heldout", federation.folder / f"{name}.upload"
    export_held_out(federation.service(), name, held_out)
    assert export_upload(federation.services[name], held_out, out, Event()) is not None
    return out


def test_an_upload_by_file_gives_the_weights_of_one_over_a_connection(
    federation: FileFederation,
) -> None:
    federation.run()
    weights = federation.head.load_tensors("model.safetensors")[0]
    first = federation.coordinator
    # Another folder with the same secret, alignment, split and name of the run.
    federation.coordinator = RunDir(federation.folder / "second").create()
    for name in ("secret.key", "alignment.json", "split.json", "heads/1/run_name.json"):
        (federation.coordinator / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(first / name, federation.coordinator / name)
    for name in PARTIES:
        import_upload(federation.service(), export(federation, name))
        for file in ("views.f16", "status.u8", "upload.json"):
            path = f"uploads/{name}/1/{file}"
            assert (first / path).read_bytes() == (federation.coordinator / path).read_bytes()
    federation.run(offline=True)
    again = federation.head.load_tensors("model.safetensors")[0]
    assert federation.head.path.is_relative_to(federation.coordinator.path)
    assert weights.keys() == again.keys()
    assert all(torch.equal(weights[key], again[key]) for key in weights)


def test_the_file_reveals_neither_the_party_nor_its_rows(stored: StoredFederation) -> None:
    manifest, chunks = stored.upload()
    data = stored.write().read_bytes()
    assert b"bank" not in data and manifest.session.encode() not in data
    assert chunks[0][1][0].numpy().tobytes() not in data


def test_an_import_is_repeated_and_continued(stored: StoredFederation) -> None:
    path = stored.write()
    manifest = import_upload(stored.service, path)
    assert import_upload(stored.service, path) == manifest
    store = find_upload(stored.service.folder, "bank", SESSION)
    assert store is not None
    values = torch.cat([values for _, values, _ in stored.upload()[1]])
    assert torch.equal(store.views(), values)


def test_every_changed_byte_is_rejected(stored: StoredFederation) -> None:
    data = stored.write().read_bytes()
    path = stored.folder / "changed"
    header = len(MAGIC) + 2 * KEY_BYTES
    for at in (0, len(MAGIC), header - 1, header, header + 3, header + 9, len(data) - 1):
        changed = bytearray(data)
        changed[at] ^= 1
        path.write_bytes(changed)
        with pytest.raises(RunError, match="is rejected"):
            import_upload(stored.service, path)
        assert find_upload(stored.service.folder, "bank", SESSION) is None


@pytest.mark.parametrize("length", [0, 20, len(MAGIC) + 2 * KEY_BYTES + 2, 400, -1])
def test_a_truncated_file_is_rejected(stored: StoredFederation, length: int) -> None:
    path = stored.write()
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(RunError, match="truncated"):
        import_upload(stored.service, path)
    assert find_upload(stored.service.folder, "bank", SESSION) is None


def test_a_file_with_more_bytes_is_rejected(stored: StoredFederation) -> None:
    path = stored.write()
    path.write_bytes(path.read_bytes() + b"0")
    with pytest.raises(RunError, match="more bytes"):
        import_upload(stored.service, path)


def test_a_huge_header_is_rejected_before_it_is_read(stored: StoredFederation) -> None:
    path, start = stored.write(), len(MAGIC) + 2 * KEY_BYTES
    data = path.read_bytes()
    path.write_bytes(data[:start] + b"\xff" * 4 + data[start + 4 :])
    with pytest.raises(RunError, match=f"at most {MAX_HEADER_BYTES} bytes"):
        import_upload(stored.service, path)


def test_huge_chunks_are_rejected_before_they_are_read(tmp_path: Path) -> None:
    made = StoredFederation(tmp_path, rows=300)
    huge = {"chunk_rows": 300, "chunks": ["0" * 32], "width": 4096, "masked_copies": 31}
    path = made.write(forged=huge)
    with pytest.raises(RunError, match="chunks of at most"):
        import_upload(made.service, path)
    assert not (made.service.folder / "uploads/bank/1").exists()


def test_a_file_for_another_coordinator_is_rejected(stored: StoredFederation) -> None:
    (stored.folder / "other").mkdir()
    path = StoredFederation(stored.folder / "other").write()
    with pytest.raises(RunError, match="for another receiver"):
        import_upload(stored.service, path)


def test_an_upload_of_another_authority_is_rejected(stored: StoredFederation) -> None:
    certificates(stored.folder / "others")
    path = stored.write(owner=tls(stored.folder / "others", "bank"))
    with pytest.raises(RunError, match="not signed by the authority"):
        import_upload(stored.service, path)


def test_an_upload_of_another_alignment_is_rejected(stored: StoredFederation) -> None:
    with pytest.raises(RunError, match="match ids again"):
        import_upload(stored.service, stored.write(session="cd" * 16))


def test_an_upload_under_another_name_is_rejected(stored: StoredFederation) -> None:
    with pytest.raises(RunError, match="got .'bank'"):
        import_upload(stored.service, stored.write(owner=tls(stored.certs, "shop")))
    stored.authority.issue("stranger")
    with pytest.raises(RunError, match="unknown party 'stranger'"):
        import_upload(stored.service, stored.write(owner=tls(stored.certs, "stranger")))


def test_an_upload_of_a_revoked_party_is_rejected(stored: StoredFederation) -> None:
    path = stored.write()
    stored.authority.revoke("bank")
    with pytest.raises(RunError, match="revoked"):
        import_upload(stored.service, path)


def test_an_older_version_is_rejected_once_a_newer_one_is_stored(stored: StoredFederation) -> None:
    old, new = stored.write("old"), stored.write("new", version=2)
    import_upload(stored.service, new)
    with pytest.raises(RunError, match="older than version 2"):
        import_upload(stored.service, old)


def test_another_upload_of_the_same_version_is_rejected(stored: StoredFederation) -> None:
    import_upload(stored.service, stored.write())
    with pytest.raises(RunError, match="new version"):
        import_upload(stored.service, stored.write(created="2026-01-02T00:00:00Z"))


def test_an_expired_upload_is_rejected(stored: StoredFederation) -> None:
    with pytest.raises(RunError, match="terms ended on 2020-01-01"):
        import_upload(stored.service, stored.write(terms=UploadTerms(expires="2020-01-01")))


@pytest.mark.parametrize(
    ("signer", "changes", "reason"),
    [
        ("coordinator", {}, ""),
        ("coordinator", {"party": "shop"}, "got the one of 'shop'"),
        ("coordinator", {"handles": ["x"]}, "list of numbers"),
        ("coordinator", {"handles": [2**40]}, "is rejected"),
        ("coordinator", {"key": "00"}, "32 bytes"),
        ("shop", {}, "not one of a server"),
    ],
)
def test_a_held_out_list_must_be_the_coordinators(
    federation: FileFederation, signer: str, changes: dict[str, object], reason: str
) -> None:
    content = {"party": "bank", "session": SESSION, "key": "00" * 32, "handles": [1, 2], **changes}
    path = federation.folder / "list"
    path.write_bytes(sign_document(tls(federation.certs, signer), HELD_OUT, content))
    if not reason:
        handles, session, key = read_held_out(federation.party("bank"), "bank", path)
        assert handles.tolist() == [1, 2] and session == SESSION and len(key) == 32
        out = federation.folder / "out"
        with pytest.raises(RunError, match="another alignment"):
            export_upload(federation.services["bank"], path, out, Event())
        path.write_text(path.read_text().replace("[1, 2]", "[1, 3]"))
        reason = "was changed"
    with pytest.raises(RunError, match=reason):
        read_held_out(federation.party("bank"), "bank", path)
