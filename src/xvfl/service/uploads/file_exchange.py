"""Uploads, held-out lists and withdrawals as files, for a party without a permanent connection.

A file replaces the connection for the held-out list, the upload and a withdrawal. Ids must have
been matched before, with `xvfl align`, which needs a connection. The chunks in the file are the
party's replies to the messages that a connected coordinator would send.

upload.key    in the coordinator's state folder: uploads by file are encrypted to it
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from math import prod
from pathlib import Path
from threading import Event

import numpy as np
import torch
from torch import Tensor

from xvfl.certs import PeerVerifier
from xvfl.certs.proof import check_coordinator
from xvfl.certs.sealed_file import (
    KEY_BYTES,
    MAGIC,
    SealedFile,
    create_sealing_key,
    read_sealing_key,
    write_sealed,
)
from xvfl.certs.signed_document import MAX_BYTES, read_document, sign_document
from xvfl.errors import RunError, WireError, XVFLError, unknown
from xvfl.federation.upload.manifest import Chunk, UploadManifest
from xvfl.model.run_dir import RunDir
from xvfl.service.config import CoordinatorConfig, PartyProcessConfig
from xvfl.service.coordinator_service import CoordinatorService
from xvfl.service.labeled_rows import MatchedLabels
from xvfl.service.secret_config import refuse_plain
from xvfl.service.uploads.changed_rows import is_sent
from xvfl.service.uploads.receive import read_manifest, upload_event
from xvfl.service.uploads.upload_party import UploadPartyService
from xvfl.service.uploads.upload_run import load_labeled_rows
from xvfl.service.uploads.upload_store import UploadStore
from xvfl.service.uploads.withdrawals import remember_certificate, withdraw
from xvfl.wire import codec
from xvfl.wire.messages import AskChunk, HeldOut, Withdraw

KEY = "upload.key"
HELD_OUT, UPLOAD, WITHDRAWAL = "xvfl held-out list 1", "xvfl upload 1", "xvfl withdrawal 1"
POLL_S = 0.2


def export_held_out(service: CoordinatorService, party: str, out: Path) -> int:
    """Write and sign a held-out list and the key to encrypt to; return the length of the list."""
    config, folder, alignment = service.config, service.folder, service.alignment
    if party not in config.parties:
        raise RunError(unknown("party", party, config.parties))
    missing = [n for n in config.all_parties if alignment is None or n not in alignment.matches]
    if alignment is None or missing:
        raise RunError(f"ids are not matched yet with {', '.join(missing)}; run `xvfl align` first")
    matched = MatchedLabels(service.labels, service.ids, alignment)
    labeled = load_labeled_rows(config, matched, config.all_parties)
    if not folder.has(KEY):
        create_sealing_key(folder / KEY)
    handles = labeled.held_out_handles()[party].tolist()
    content = {
        "party": party,
        "session": alignment.matches[party].session.hex(),
        "key": read_sealing_key(folder / KEY).public_key().public_bytes_raw().hex(),
        "handles": handles,
    }
    _write(out, sign_document(config.tls, HELD_OUT, content))
    return len(handles)


def read_held_out(config: PartyProcessConfig, party: str, path: Path) -> tuple[Tensor, str, bytes]:
    """Verify a held-out list; return its handles, its alignment and the coordinator's key."""
    check = partial(check_coordinator, address=config.coordinator, peers=_peers(config))
    try:
        document = read_document(_read(path), HELD_OUT, check)
        found, handles = document.get("party", str), document.get("handles", list)
        if found != party:
            raise WireError(f"expected the list of {party!r}, got the one of {found!r}")
        key = bytes.fromhex(document.get("key", str))
        if len(key) != KEY_BYTES or not all(type(each) is int for each in handles):
            raise WireError("expected a key of 32 bytes and a list of numbers")
        return torch.tensor(handles, dtype=torch.int32), document.get("session", str), key
    except (XVFLError, ValueError, RuntimeError) as error:
        raise RunError(f"{path}: the held-out list is rejected: {error}") from error


def export_upload(
    service: UploadPartyService, held_out: Path, out: Path, stop: Event
) -> UploadManifest | None:
    """Train the encoder if it is not trained yet, and write the upload; None if stopped.

    Parameters
    ----------
    service
        The party; its ids must be matched.
    held_out
        The file of `export_held_out`.
    out
        The file to write.
    stop
        Stops the training.
    """
    config = service.inputs.config
    refuse_plain(config.secret, "`xvfl upload export`")
    found = prepare_upload(service, held_out, stop)
    if found is None:
        return None
    manifest, key = found
    parts = (part.numpy().tobytes() for chunk in chunks(service, manifest) for part in chunk)
    write_sealed(out, config.tls, key, UPLOAD, {"manifest": manifest.to_json()}, parts)
    service.record.set_stored(manifest.digest)
    return manifest


def prepare_upload(
    service: UploadPartyService, held_out: Path, stop: Event
) -> tuple[UploadManifest, bytes] | None:
    """Train the encoder if it is not trained yet; return the manifest and the coordinator's key.

    Returns None if stopped.
    """
    match, config = service.table.match, service.inputs.config
    if match is None:
        raise RunError(
            "ids are not matched yet; run `xvfl align` first: it needs a connection, once"
        )
    handles, session, key = read_held_out(config, service.inputs.name, held_out)
    if session != match.session.hex():
        raise RunError(
            f"{held_out}: the list belongs to another alignment; ask the coordinator for the list "
            "of this alignment, or match ids again with `xvfl align --again`"
        )
    with _no_upload():
        service.set_held_out(HeldOut(0, handles))
    while not stop.is_set():
        if service.problem:
            raise RunError(service.problem)
        if (manifest := service.manifest) is not None:
            return manifest, key
        stop.wait(POLL_S)
    return None


def chunks(service: UploadPartyService, manifest: UploadManifest) -> Iterator[Chunk]:
    """Compute the chunks of a finished upload."""
    for number in range(len(manifest.chunks)):
        with _no_upload():
            chunk = service.chunk(AskChunk(0, manifest.version, number))
        yield chunk.origin, chunk.values, chunk.row_status


@contextmanager
def _no_upload() -> Iterator[None]:
    try:
        yield
    except WireError as error:
        raise RunError(f"the upload cannot be made: {error}") from error


def import_upload(service: CoordinatorService, path: Path) -> UploadManifest:
    """Verify, decrypt and store an upload from a file, chunk by chunk.

    An interrupted import continues; an upload that is stored already changes nothing.
    """
    config, folder, alignment = service.config, service.folder, service.alignment
    refuse_plain(config.secret, "`xvfl upload import`")
    if not folder.has(KEY):
        raise RunError(
            f"{folder / KEY}: no such key, so the upload was not encrypted to this coordinator; "
            "run `xvfl upload held-out` first, and export the upload with the list that it writes"
        )
    try:
        with path.open("rb") as file:
            sealed = SealedFile(
                file, read_sealing_key(folder / KEY), UPLOAD, partial(_party, config)
            )
            name = sealed.document.owner
            match = alignment.matches.get(name) if alignment else None
            if match is None:
                raise WireError(f"ids are not matched yet with {name!r}; run `xvfl align` first")
            manifest = read_manifest(sealed.document.get("manifest", str), name, match, config)
            store = UploadStore(folder, manifest)
            _store(store, sealed)
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    except XVFLError as error:
        raise RunError(f"{path}: the upload is rejected: {error}") from error
    remember_certificate(folder, name, sealed.document.certificate, service.log)
    service.log({**upload_event(manifest), "file": str(path)})
    return manifest


def _store(store: UploadStore, sealed: SealedFile) -> None:
    missing = set(store.missing)
    for number in range(len(store.manifest.chunks)):
        n_rows, *sizes = store.manifest.shape(number)
        origin = _tensor(sealed, (n_rows,), np.int32)
        values = _tensor(sealed, (int(is_sent(origin).sum()), *sizes), np.float16)
        status = _tensor(sealed, values.shape[:1], np.uint8)
        if number in missing:
            store.add(number, origin, values, status)
    sealed.end()


def _tensor(sealed: SealedFile, shape: tuple[int, ...], dtype: type[np.generic]) -> Tensor:
    data = bytearray(sealed.part(prod(shape) * np.dtype(dtype).itemsize))
    return torch.from_numpy(np.frombuffer(data, dtype).reshape(shape))


def export_withdrawal(config: PartyProcessConfig, message: Withdraw, out: Path) -> None:
    """Write and sign a withdrawal."""
    content = {"request": codec.encode(message).hex()}
    _write(out, sign_document(config.tls, WITHDRAWAL, content))


def import_withdrawal(service: CoordinatorService, path: Path, receipt: Path) -> str:
    """Carry out a withdrawal from a file, and write the receipt; return the party's name."""
    config = service.config
    try:
        document = read_document(_read(path), WITHDRAWAL, partial(_party, config))
        name: str = document.owner
        message = codec.decode(bytes.fromhex(document.get("request", str)))
        if not isinstance(message, Withdraw):
            raise WireError(f"expected Withdraw, got {type(message).__name__}")
        reply = withdraw(service.folder, config.signing_key, name, message, service.log)
    except (XVFLError, ValueError) as error:
        raise RunError(f"{path}: the withdrawal is rejected: {error}") from error
    _write(receipt, codec.encode(reply))
    return name


def is_upload(path: Path) -> bool:
    """Return whether a file is an upload, and not a withdrawal."""
    return _read(path, len(MAGIC)) == MAGIC


def _peers(config: CoordinatorConfig | PartyProcessConfig) -> PeerVerifier:
    return PeerVerifier(config.tls.ca_certificate, config.revocation_list)


def _party(config: CoordinatorConfig, certificate: bytes) -> str:
    """Return the party that a trusted certificate names."""
    name = _peers(config).check(certificate)
    if name not in config.parties:
        raise WireError(unknown("party", name, config.parties))
    return name


def _read(path: Path, n_bytes: int = MAX_BYTES + 1) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(n_bytes)
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror}); check the path") from error


def _write(path: Path, data: bytes) -> None:
    RunDir(path.parent).write_bytes(path.name, data)
