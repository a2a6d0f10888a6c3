"""The coordinator receives uploads: it names held-out rows, then pulls chunks until all are here.

A party that is offline is asked again when it is back; chunks that have arrived are not asked for
again, also after a restart of either side.
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any, TypeVar

from torch import Tensor

from xvfl.errors import PartyError, RunError, WireError
from xvfl.federation.remote_party import RemoteParty, request_all
from xvfl.model.run_dir import RunDir
from xvfl.service.log import LogFunction
from xvfl.service.uploads.upload_store import UploadStore, find_upload
from xvfl.upload.manifest import UploadManifest, parse_manifest
from xvfl.wire.messages import (
    AskChunk,
    AskUpload,
    Done,
    HeldOut,
    Message,
    UploadChunk,
    UploadOffer,
    UploadStored,
)

FIRST_POLL_S, MAX_POLL_S = 0.2, 5.0
Reply = TypeVar("Reply", Done, UploadOffer, UploadChunk)


class UploadReceiver:
    """Receives one party's upload."""

    def __init__(
        self,
        party: RemoteParty,
        folder: RunDir,
        session: str,
        rows: int,
        request_ids: Iterator[int],
        log: LogFunction,
    ) -> None:
        self._party, self._folder, self._log = party, folder, log
        self._session, self._rows = session, rows
        self._request_ids = request_ids
        self.progress = 0.0
        """Finished share of the training of the party's encoder."""

    def receive(self, held_out: Tensor, stop: Event, newer: bool = False) -> UploadStore | None:
        """Receive the whole upload; None if `stop` is set before. A refusal raises `RunError`.

        An upload that is stored already needs no party; with `newer`, a party that is online is
        asked for a newer version.
        """
        stored = find_upload(self._folder, self._party.name, self._session)
        if stored is not None and not (newer and self._has_newer(stored.manifest.version)):
            return stored
        pause = FIRST_POLL_S
        while not stop.is_set():
            try:
                store = self._try(held_out)
            except PartyError as error:
                if error.fault == "refused":
                    raise RunError(str(error)) from error
                store = None
            if store is not None:
                return store
            stop.wait(pause)
            pause = min(1.5 * pause, MAX_POLL_S)
        return None

    def _has_newer(self, version: int) -> bool:
        """Ask whether the party offers a newer version than the stored one."""
        if self._party.transport.hello() is None:
            return False
        try:
            return self._request(AskUpload(self._next()), UploadOffer).version > version
        except PartyError:
            return False

    def _try(self, held_out: Tensor) -> UploadStore | None:
        """Ask for the upload and the chunks that are missing; None if the party has none yet."""
        if self._party.transport.hello() is None:
            return None
        self._request(HeldOut(self._next(), held_out.int()), Done)
        offer = self._request(AskUpload(self._next()), UploadOffer)
        self.progress = offer.progress
        if not offer.version:
            return None
        try:
            manifest = check_manifest(
                parse_manifest(offer.manifest), self._party.name, self._session, self._rows
            )
            store = UploadStore(self._folder, manifest)
            for number in store.missing:
                chunk = self._request(AskChunk(self._next(), manifest.version, number), UploadChunk)
                store.add(number, chunk.values, chunk.row_status)
        except WireError as error:
            name = self._party.name
            raise RunError(f"party {name!r}: its upload is rejected: {error}") from error
        self._request(UploadStored(self._next(), manifest.version, manifest.digest), Done)
        self._log(upload_event(manifest))
        return store

    def _next(self) -> int:
        return next(self._request_ids)

    def _request(self, message: Message, reply_type: type[Reply]) -> Reply:
        (reply,) = request_all([self._party], [message], reply_type)
        return reply


def check_manifest(manifest: UploadManifest, party: str, session: str, rows: int) -> UploadManifest:
    """Reject an upload of another party or alignment."""
    expected = party, session, rows
    found = manifest.party, manifest.session, manifest.rows
    if found != expected:
        raise WireError(
            f"expected (party, session, rows) = {expected}, got {found}; match ids again"
        )
    return manifest


def upload_event(manifest: UploadManifest) -> dict[str, Any]:
    """Return the log event of a stored upload."""
    return {
        "event": "upload_received",
        "party": manifest.party,
        "version": manifest.version,
        "rows": manifest.rows,
        "digest": manifest.digest,
    }


def receive_uploads(
    receivers: Mapping[str, UploadReceiver],
    held_out: Mapping[str, Tensor],
    stop: Event,
    newer: bool = False,
) -> dict[str, UploadStore]:
    """Receive the uploads of several parties at once; fewer if `stop` is set before."""
    with ThreadPoolExecutor(len(receivers)) as pool:
        futures = {
            name: pool.submit(receiver.receive, held_out[name], stop, newer)
            for name, receiver in receivers.items()
        }
        try:
            stores = {name: future.result() for name, future in futures.items()}
        except BaseException:
            stop.set()
            raise
    return {name: store for name, store in stores.items() if store is not None}
