"""Uploads, held-out lists and withdrawals as files, for a party without a connection.

A file replaces the connection for the held-out list, the upload and a withdrawal. Ids must have
been matched before, with `xvfl align`: matching is an exchange of messages.
"""

import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from threading import Event

import torch
from torch import Tensor

from xvfl.certs import PeerVerifier
from xvfl.certs.proof import check_coordinator
from xvfl.certs.signed_document import MAX_BYTES, read_document, sign_document
from xvfl.errors import RunError, WireError, XVFLError, unknown
from xvfl.model.run_dir import RunDir
from xvfl.service.config import CoordinatorConfig, PartyProcessConfig
from xvfl.service.coordinator_service import CoordinatorService
from xvfl.service.log import LogFunction
from xvfl.service.uploads.party_service import UploadPartyService
from xvfl.service.uploads.receipts import receipt_to_json
from xvfl.service.uploads.receive import check_manifest, upload_event
from xvfl.service.uploads.upload_file import (
    KEY_BYTES,
    MAGIC,
    load_upload_key,
    read_upload_file,
    write_upload_file,
)
from xvfl.service.uploads.upload_run import load_labeled_rows
from xvfl.service.uploads.upload_store import UploadStore
from xvfl.service.uploads.withdrawals import remember_certificate, withdraw
from xvfl.upload.manifest import UploadManifest, parse_manifest
from xvfl.wire import codec
from xvfl.wire.in_process import InProcessTransport
from xvfl.wire.messages import (
    AskChunk,
    AskUpload,
    ErrorReply,
    HeldOut,
    Message,
    UploadChunk,
    UploadOffer,
    Withdraw,
)

HELD_OUT_KIND, WITHDRAWAL_KIND = "xvfl held-out list 1", "xvfl withdrawal 1"
POLL_S = 0.2


def peer_verifier(config: CoordinatorConfig | PartyProcessConfig) -> PeerVerifier:
    """Return the verifier of certificates for a configuration."""
    revocation_list = Path(config.revocation_list) if config.revocation_list else None
    return PeerVerifier(Path(config.tls.ca_certificate), revocation_list)


def export_held_out(service: CoordinatorService, party: str, out: Path) -> int:
    """Write a party's held-out list and the key to encrypt to, signed; return its length.

    Parameters
    ----------
    service
        The coordinator; ids must be matched.
    party
        The party.
    out
        The file.
    """
    config, alignment = service.config, service.alignment
    if party not in config.parties:
        raise RunError(unknown("party", party, config.parties))
    missing = [n for n in config.all_parties if alignment is None or n not in alignment.matches]
    if alignment is None or missing:
        raise RunError(f"ids are not matched yet with {', '.join(missing)}; run `xvfl align` first")
    labeled = load_labeled_rows(
        config, service.folder, service.labels, service.ids, alignment, config.all_parties
    )
    handles = labeled.held_out_handles()[party].tolist()
    content = {
        "party": party,
        "session": alignment.matches[party].session.hex(),
        "key": load_upload_key(service.folder, create=True).public_key().public_bytes_raw().hex(),
        "handles": handles,
    }
    _write(out, sign_document(config.tls, HELD_OUT_KIND, content))
    return len(handles)


def read_held_out(config: PartyProcessConfig, party: str, path: Path) -> tuple[HeldOut, str, bytes]:
    """Read and verify a held-out list: the list, its alignment and the coordinator's key."""
    try:
        document = read_document(_read_file(path), HELD_OUT_KIND)
        check_coordinator(document.certificate, config.coordinator, peer_verifier(config))
        found, handles = document.get("party", str), document.get("handles", list)
        if found != party:
            raise WireError(f"expected the list of {party!r}, got the one of {found!r}")
        key = bytes.fromhex(document.get("key", str))
        if len(key) != KEY_BYTES or not all(type(each) is int for each in handles):
            raise WireError("expected a key of 32 bytes and a list of numbers")
        listed = torch.tensor(handles, dtype=torch.int32)
        return HeldOut(0, listed), document.get("session", str), key
    except (XVFLError, ValueError, RuntimeError) as error:
        raise RunError(f"{path}: the held-out list is rejected: {error}") from error


class UploadExport:
    """Sends a party the messages that a coordinator would send, and writes the replies to a file.

    Parameters
    ----------
    config
        The party's configuration.
    service
        The party; its ids must be matched.
    """

    def __init__(self, config: PartyProcessConfig, service: UploadPartyService) -> None:
        self._config, self._service = config, service
        endpoint = service.endpoint
        self._transport = InProcessTransport(endpoint.hello, endpoint.handle)
        # From the clock, as a coordinator's.
        self._request_ids = count(time.time_ns() // 1_000)

    def write(self, held_out: Path, out: Path, stop: Event) -> UploadManifest | None:
        """Train the encoder if it is not trained yet, and write the upload; None if stopped."""
        name, match = self._service.inputs.name, self._service.table.match
        if match is None:
            raise RunError(
                "ids are not matched yet; run `xvfl align` first: it needs a connection, once"
            )
        message, session, key = read_held_out(self._config, name, held_out)
        if session != match.session.hex():
            raise RunError(
                f"{held_out}: it belongs to another alignment; match ids again with `xvfl align "
                "--again`, or request the list of this alignment"
            )
        self._request(HeldOut(self._next(), message.handles))
        manifest = self._wait(stop)
        if manifest is None:
            return None
        if manifest.session != session:
            raise RunError(
                f"version {manifest.version} was made for another alignment; allow the next one "
                "with `xvfl upload new-version`"
            )
        write_upload_file(out, self._config.tls, key, manifest, self._chunks(manifest))
        return manifest

    def _wait(self, stop: Event) -> UploadManifest | None:
        while not stop.is_set():
            offer = self._request(AskUpload(self._next()))
            assert isinstance(offer, UploadOffer)
            if offer.version:
                return parse_manifest(offer.manifest)
            if offer.problem:
                raise RunError(offer.problem)
            stop.wait(POLL_S)
        return None

    def _chunks(self, manifest: UploadManifest) -> Iterator[tuple[Tensor, Tensor]]:
        for number in range(len(manifest.chunks)):
            chunk = self._request(AskChunk(self._next(), manifest.version, number))
            assert isinstance(chunk, UploadChunk)
            yield chunk.values, chunk.row_status

    def _request(self, message: Message) -> Message:
        reply = self._transport.request(message).result()
        if isinstance(reply, ErrorReply):
            raise RunError(f"the upload cannot be made: {reply.text}")
        return reply

    def _next(self) -> int:
        return next(self._request_ids)


def import_upload(service: CoordinatorService, path: Path) -> UploadManifest:
    """Verify, decrypt and store an upload from a file, chunk by chunk.

    An upload that was interrupted is continued; one that is stored already changes nothing.
    """
    config, alignment = service.config, service.alignment
    key = load_upload_key(service.folder)
    try:
        with path.open("rb") as file:
            upload = read_upload_file(file, key)
            name = _check_party(config, upload.certificate)
            match = alignment.matches.get(name) if alignment else None
            if match is None:
                raise WireError(f"ids are not matched yet with {name!r}; run `xvfl align` first")
            rows = int((match.handles >= 0).sum())
            manifest = check_manifest(upload.manifest, name, match.session.hex(), rows)
            store = UploadStore(service.folder, manifest)
            missing = set(store.missing)
            for number, (values, status) in enumerate(upload.chunks()):
                if number in missing:
                    store.add(number, values, status)
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    except XVFLError as error:
        raise RunError(f"{path}: the upload is rejected: {error}") from error
    remember_certificate(service.folder, name, upload.certificate, service.log)
    service.log({**upload_event(manifest), "file": str(path)})
    return manifest


def export_withdrawal(config: PartyProcessConfig, message: Withdraw, out: Path) -> None:
    """Write and sign a withdrawal."""
    _write(
        out, sign_document(config.tls, WITHDRAWAL_KIND, {"request": codec.encode(message).hex()})
    )


def import_withdrawal(
    config: CoordinatorConfig, folder: RunDir, path: Path, receipt: Path, log: LogFunction
) -> str:
    """Carry out a withdrawal from a file, and write the receipt; return the party's name."""
    try:
        document = read_document(_read_file(path), WITHDRAWAL_KIND)
        name = _check_party(config, document.certificate)
        message = codec.decode(bytes.fromhex(document.get("request", str)))
        if not isinstance(message, Withdraw):
            raise WireError(f"expected Withdraw, got {type(message).__name__}")
        _write(receipt, receipt_to_json(withdraw(folder, config.signing_key, name, message, log)))
    except (XVFLError, ValueError) as error:
        raise RunError(f"{path}: the withdrawal is rejected: {error}") from error
    return name


def is_upload(path: Path) -> bool:
    """Return whether a file is an upload, and not a withdrawal."""
    return _read_file(path, len(MAGIC)) == MAGIC


def _check_party(config: CoordinatorConfig, certificate: bytes) -> str:
    name = peer_verifier(config).check(certificate)
    if name not in config.parties:
        raise WireError(unknown("party", name, config.parties))
    return name


def _read_file(path: Path, n_bytes: int = MAX_BYTES + 1) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(n_bytes)
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror}); check the path") from error


def _write(path: Path, data: bytes) -> None:
    RunDir(path.parent).write_bytes(path.name, data)
