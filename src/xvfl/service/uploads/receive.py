"""The coordinator receives uploads: it sends the held-out list, then asks for chunk after chunk.

A party that is offline is asked again when it is back. Chunks that have arrived are not requested
again, also after a restart of either side.
"""

import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from threading import Event
from typing import Any, TypeVar

from torch import Tensor

from xvfl.errors import PartyError, RunError, WireError
from xvfl.federation.remote_party import RemoteParty, request_all
from xvfl.federation.upload.manifest import UploadManifest, parse_manifest
from xvfl.matching import CoordinatorMatch
from xvfl.model.run_dir import RunDir
from xvfl.service.config import CoordinatorConfig
from xvfl.service.uploads.upload_store import UploadStore, find_upload
from xvfl.system.event_log import LogFunction
from xvfl.system.printable import one_line
from xvfl.wire.in_process import OfflineTransport
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
from xvfl.wire.request_ids import next_request_id

FIRST_POLL_S, MAX_POLL_S = 0.2, 1.0
Reply = TypeVar("Reply", Done, UploadOffer, UploadChunk)


class UploadError(RunError):
    """A party's upload is rejected, or it does not arrive."""


class UploadReceiver:
    """Receives one party's upload; an error if it does not connect or make progress in time."""

    def __init__(
        self,
        party: RemoteParty,
        match: CoordinatorMatch,
        config: CoordinatorConfig,
        log: LogFunction,
    ) -> None:
        folder = RunDir(config.state_dir)
        self._party, self._folder, self._log, self._match = party, folder, log, match
        self._config, self._timeouts = config, config.timeouts
        self._percent, self._deadline, self._until = -1, math.inf, math.inf
        self.progress, self.problem = 0.0, ""
        """Finished share of the training of the party's encoder; why the run waits."""

    def receive(self, held_out: Tensor, stop: Event, version: int = 0) -> UploadStore | None:
        """Receive the whole upload; None if `stop` is set before. A refusal raises `UploadError`.

        If an upload is stored already, the party need not be online; if it is, it is asked for a
        newer version or part, unless `version` names the one that is needed.
        """
        stored = find_upload(self._folder, self._party.name, self._match.session.hex(), version)
        if stored is None and isinstance(self._party.transport, OfflineTransport):
            text = f"party {self._party.name!r}: no upload of it is stored, and no port is open"
            raise self._failed("upload_late", text)
        if stored is None:
            return self._wait_for(held_out, stop)
        if version or self._party.transport.hello() is None:
            return self._accept(stored)
        try:
            return self._wait_for(held_out, stop, self._timeouts.join)
        except RunError as error:
            # A party must not be able to prevent a training for which its upload is here.
            used = {"party": self._party.name, "version": stored.manifest.version}
            self._log({"event": "stored_upload_used", **used, "reason": str(error)})
            return self._accept(stored)

    def _wait_for(
        self, held_out: Tensor, stop: Event, seconds: float = math.inf
    ) -> UploadStore | None:
        """Receive the upload that the party offers, within these seconds."""
        name, pause, now = self._party.name, FIRST_POLL_S, time.monotonic()
        self._percent, self._deadline = -1, now + self._timeouts.join
        self._until = now + seconds
        while not stop.is_set():
            self._advance(-1)
            try:
                if self._party.transport.hello() is None:
                    self.problem = f"party {name!r} is not connected, and its upload is not stored"
                elif (store := self._try(held_out)) is not None:
                    return self._accept(store)
                else:
                    self.problem = ""
            except PartyError as error:
                if error.fault == "refused":
                    raise self._failed("upload_rejected", str(error)) from error
                self.problem = str(error)
            stop.wait(pause)
            pause = min(1.5 * pause, MAX_POLL_S)
        return None

    def _advance(self, percent: int) -> None:
        """Raise if the party is late; each percent that it reaches gives it more time.

        Less than a percent does not count: a party could report progress forever.
        """
        now, limits = time.monotonic(), self._timeouts
        if now > min(self._deadline, self._until):
            late = (
                f"has made no progress for {limits.upload:g} s; see its log, raise timeouts.upload "
                "for a slow party, or remove it from `parties`"
            )
            if self._percent < 0 or now > self._until:
                late = f"did not upload within timeouts.join = {limits.join:g} s; start it with "
                late += "`xvfl party`, or raise the timeout; chunks that have arrived are kept"
            raise self._failed("upload_late", f"party {self._party.name!r} {late}")
        if percent > self._percent:
            self._percent, self._deadline = percent, now + limits.upload

    def _failed(self, event: str, reason: str) -> UploadError:
        """Log why there is no upload; return the error."""
        self.problem = reason
        self._log({"event": event, "party": self._party.name, "reason": reason})
        return UploadError(reason)

    def _accept(self, store: UploadStore) -> UploadStore:
        self.progress, self.problem = 1.0, ""
        return store

    def _try(self, held_out: Tensor) -> UploadStore | None:
        """Ask for the upload and the chunks that are missing; None if the party has none yet."""
        name = self._party.name
        self._advance(0)
        self._request(Done, HeldOut, held_out.int())
        offer = self._request(UploadOffer, AskUpload)
        if offer.problem:
            problem = f"party {name!r}: {one_line(offer.problem)}"
            raise self._failed("upload_rejected", problem)
        self.progress = min(max(offer.progress, 0.0), 1.0) if math.isfinite(offer.progress) else 0.0
        self._advance(int(100 * self.progress))
        if not offer.version:
            return None
        try:
            manifest = read_manifest(offer.manifest, name, self._match, self._config)
            store = UploadStore(self._folder, manifest)
            missing = store.missing
            for number in missing:
                chunk = self._request(UploadChunk, AskChunk, manifest.version, number)
                store.add(number, chunk.origin, chunk.values, chunk.row_status)
                self._advance(100 + 100 * number // len(manifest.chunks))
        except WireError as error:
            problem = f"party {name!r}: its upload is rejected: {error}"
            raise self._failed("upload_rejected", problem) from error
        self._request(Done, UploadStored, manifest.version, manifest.digest)
        if missing:
            self._log(upload_event(manifest))
        return store

    def _request(
        self, reply_type: type[Reply], kind: Callable[..., Message], *fields: object
    ) -> Reply:
        message = kind(next_request_id(), *fields)
        (reply,) = request_all([self._party], [message], reply_type)
        return reply


def read_manifest(
    text: str, party: str, match: CoordinatorMatch, config: CoordinatorConfig
) -> UploadManifest:
    """Parse the manifest that a party sent; reject another party or alignment, and more noise."""
    manifest = parse_manifest(text)
    expected = party, match.session.hex(), int((match.handles >= 0).sum())
    found = manifest.party, manifest.session, manifest.rows
    if found != expected:
        raise WireError(
            f"expected (party, session, rows) = {expected}, got {found}; match ids again"
        )
    if manifest.noise_std > config.max_noise:
        raise WireError(
            f"its ε = {manifest.epsilon:g} has noise of {manifest.noise_std:g}; this coordinator "
            f"accepts up to max_noise = {config.max_noise:g}"
        )
    return manifest


def upload_event(manifest: UploadManifest) -> dict[str, Any]:
    """Return the log event of a stored upload."""
    names = ("party", "version", "part", "rows", "appended", "replaced")
    counts = {name: getattr(manifest, name) for name in names}
    sizes = {"bytes": manifest.n_bytes, "digest": manifest.digest}
    return {"event": "upload_received", **counts, **sizes}


def receive_uploads(
    receivers: Mapping[str, UploadReceiver],
    held_out: Mapping[str, Tensor],
    stop: Event,
    versions: Mapping[str, int],
    problems: dict[str, str] | None = None,
) -> dict[str, UploadStore]:
    """Receive the uploads of several parties at once; fewer if `stop` is set before.

    `versions` names the versions that are needed; the newest ones of the other parties. An upload
    that is rejected or late is an error, or with `problems` its reason is added to them.
    """

    def receive(name: str) -> UploadStore | None:
        try:
            return receivers[name].receive(held_out[name], stop, versions.get(name, 0))
        except UploadError as error:
            if problems is None:
                text = f"{error}; or train without it, with on_anomaly = 'leave_out'"
                raise RunError(text) from error
            problems[name] = str(error)
            return None

    with ThreadPoolExecutor(len(receivers)) as pool:
        futures = {name: pool.submit(receive, name) for name in receivers}
        try:
            # One that fails must not wait for a party that trains.
            for future in wait(futures.values(), return_when=FIRST_EXCEPTION).done:
                future.result()
            stores = {name: future.result() for name, future in futures.items()}
        except BaseException:
            stop.set()
            raise
    return {name: store for name, store in stores.items() if store is not None}
