"""A party that uploads: it replies to matching, held-out list, requests for its upload, releases.

None of these messages names a net, a view, a batch or a step; every other message is rejected.
"""

import threading
import traceback
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from xvfl.config import UploadTerms
from xvfl.errors import RunError, WireError, XVFLError
from xvfl.federation.message_checks import check_handles
from xvfl.federation.request_endpoint import Replies, RequestEndpoint
from xvfl.federation.upload.manifest import (
    CREATED,
    UploadManifest,
    chunk_digest,
    parse_manifest,
)
from xvfl.federation.upload.views import compute_views
from xvfl.service.log import LogFunction, ProgressLog
from xvfl.service.matched_table import MatchedTable
from xvfl.service.party_inputs import PartyInputs
from xvfl.service.uploads.party_encoder import HeldOutRows, PartyEncoder
from xvfl.service.uploads.withdrawn import Withdrawn
from xvfl.wire.messages import (
    AskChunk,
    AskUpload,
    Done,
    HeldOut,
    Match,
    Release,
    UploadChunk,
    UploadOffer,
    UploadStored,
)

UPLOAD = "upload.json"
CHUNK_BYTES = 2**22
"""Approximate bytes of the embeddings of a chunk."""
MAX_CHUNK_ROWS = 4096
ONLY_UPLOADS = (
    "this party uploads its embeddings once and takes no part in interactive training; its "
    "configuration would have to name it"
)
MAX_HELD_OUT, MIN_LIMITED = 0.75, 40
"""Largest share of the matched rows that a coordinator can hold out, of this many rows or more. It
chooses the list, and could otherwise have the encoder trained on a few rows of its choice."""


class Upload:
    """The matched rows of a trained encoder, chunk by chunk."""

    def __init__(
        self, encoder: PartyEncoder, rows: Tensor, copies: int, withdrawn: Sequence[int] = ()
    ) -> None:
        """Leave withdrawn rows out: they are zeros, with the status of unobserved rows."""
        self._worker, self._rows, self._copies = encoder.worker(), rows, copies
        self.encoder, self.width = encoder, encoder.width
        self._withdrawn = torch.zeros(len(rows), dtype=torch.bool)
        self.leave_out(withdrawn)
        row_bytes = 2 * self.width * (1 + copies)
        self.chunk_rows = max(1, min(CHUNK_BYTES // row_bytes, MAX_CHUNK_ROWS))

    def leave_out(self, withdrawn: Sequence[int]) -> None:
        """Leave further rows out, which were withdrawn since."""
        self._withdrawn[list(withdrawn)] = True

    def chunk(self, number: int) -> tuple[Tensor, Tensor]:
        """Compute a chunk: embeddings (n, 1 + c, d) and the status of rows (n,)."""
        start = number * self.chunk_rows
        handles = self._rows[start : start + self.chunk_rows].to(self._worker.table.device)
        observed = self._worker.table.take(handles).observed
        status = self.encoder.row_status(observed).cpu()
        values = compute_views(self._worker, handles, self._copies).cpu()
        gone = self._withdrawn[start : start + self.chunk_rows]
        status[gone], values[gone] = 0, 0
        return values, status

    def manifest(self, session: str, image: bool, terms: UploadTerms) -> UploadManifest:
        """Compute the digests of all chunks."""
        count = -(-len(self._rows) // self.chunk_rows)
        digests = tuple(chunk_digest(*self.chunk(number)) for number in range(count))
        return UploadManifest(
            party=self.encoder.name,
            version=self.encoder.version,
            session=session,
            rows=len(self._rows),
            width=self.width,
            masked_copies=self._copies,
            image=image,
            encoder=self.encoder.digest,
            chunk_rows=self.chunk_rows,
            chunks=digests,
            terms=terms,
            created=datetime.now(UTC).strftime(CREATED),
            withdrawn=int(self._withdrawn.sum()),
            **self.encoder.noise,
        )


def check_held_out(handles: Tensor, n_rows: int) -> None:
    """Reject a list that is not sorted, repeats rows, or leaves too few to learn from."""
    check_handles(handles, n_rows)
    if len(handles) and (int(handles[0]) < 0 or bool((handles.diff() <= 0).any())):
        raise WireError("HeldOut: expected rows in ascending order, each at most once")
    if n_rows >= MIN_LIMITED and len(handles) > MAX_HELD_OUT * n_rows:
        raise WireError(
            f"HeldOut: this party allows up to {MAX_HELD_OUT:.0%} of the {n_rows} matched "
            f"rows, got {len(handles)}; lower `test_fraction` or `validation_fraction`"
        )


class UploadEndpoint(RequestEndpoint):
    """Replies to the coordinator; trains the encoder in a thread when the held-out rows are known.

    Parameters
    ----------
    inputs
        The party's configuration and state folder.
    table
        The party's table and its alignment.
    encoder
        The party's encoder.
    replies
        Reply to matching and releases.
    log_event
        Receives log events.
    """

    restarts = (Match, Release)

    def __init__(
        self,
        inputs: PartyInputs,
        table: MatchedTable,
        encoder: PartyEncoder,
        replies: Replies,
        log_event: LogFunction,
    ) -> None:
        own: Replies = {
            HeldOut: self._set_held_out,
            AskUpload: self._offer,
            AskChunk: self._chunk,
            UploadStored: self._set_stored,
        }
        super().__init__(table.hello(), log_event, {**own, **replies}, ONLY_UPLOADS)
        self._inputs, self._table, self._encoder = inputs, table, encoder
        self._folder = inputs.folder
        self._upload: Upload | None = None
        self._manifest: UploadManifest | None = None
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self.progress = 0.0
        """Finished share of the encoder's training."""
        self.uploaded = False
        """Whether the coordinator has stored the whole upload."""
        self._problem = ""

    def status(self) -> dict[str, Any]:
        """Describe the encoder and what left this party; numbers become metrics."""
        manifest = self._manifest
        return {
            "encoder_version": self._encoder.version,
            "encoder_progress": round(self.progress, 3),
            "encoder_problem": self._problem,
            "upload_stored": int(self.uploaded),
            "upload_rows": manifest.rows if manifest else 0,
            "upload_bytes": manifest.n_bytes if manifest else 0,
            "upload_created": manifest.created if manifest else "",
        }

    def use_match(self) -> None:
        """Use the matched rows of the table; train if the held-out rows are known."""
        self.hello = self._table.hello()
        if self._held_out().load() is not None:
            self._start_training()

    def close(self) -> None:
        """Stop the training; it writes a checkpoint."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _set_held_out(self, message: HeldOut) -> Done:
        check_held_out(message.handles, len(self._rows("HeldOut")))
        self._held_out().store(message.handles.tolist())
        self._start_training()
        return Done(message.request_id, 0)

    def _set_stored(self, message: UploadStored) -> Done:
        self._check_version("UploadStored", message.version)
        if not self.uploaded:
            self.uploaded = True
            event = {"event": "upload_stored", "version": message.version}
            self._log_event({**event, "digest": message.digest, **self.status()})
        return Done(message.request_id, 0)

    def _rows(self, what: str) -> NDArray[np.int64]:
        if self._table.match is None:
            raise WireError(f"{what}: ids are not matched yet; run `xvfl align` first")
        return self._table.match.rows

    def _held_out(self) -> HeldOutRows:
        return HeldOutRows(self._folder, self.hello.session)

    def _start_training(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._train, name="encoder", daemon=True)
            self._thread.start()

    def _train(self) -> None:
        """Train the encoder and compute the manifest; log every error."""
        try:
            matched, held_out = self._rows("HeldOut"), self._held_out().load() or []
            version, withdrawn = self._encoder.version, Withdrawn(self._folder)
            if withdrawn.covers(version):
                raise RunError(
                    f"version {version} was withdrawn; allow the next version with `xvfl upload "
                    "new-version`"
                )
            gone = withdrawn.rows(self.hello.session)
            learned = np.setdiff1d(np.arange(len(self._table.ids)), matched[[*held_out, *gone]])
            started = {"version": version, "rows": len(learned), "held_out": len(held_out)}
            self._log_event({"event": "encoder_training", **started})
            progress = ProgressLog(self._log_event, {"event": "encoder_progress"})

            def report(text: str, share: float) -> None:
                self.progress = share
                progress(round(100 * share), 100)

            if not self._encoder.train(torch.from_numpy(learned), self._stop, report):
                return
            self._log_event({"event": "encoder_trained", "version": version})
            manifest = self._stored_manifest()
            if manifest is not None:
                gone = gone[: manifest.withdrawn]
                if manifest.session != self.hello.session:
                    raise RunError(
                        f"the upload of version {version} was made for another alignment; allow "
                        "the next version with `xvfl upload new-version`"
                    )
            copies = self._inputs.encoder.copies
            upload = Upload(self._encoder, torch.from_numpy(matched), copies, gone)
            self._manifest = manifest or self._new_manifest(upload)
            self._upload = upload
            self.progress = 1.0
        except Exception as error:
            # The endpoint goes on. The message may contain the party's data: it is not sent.
            reason = str(error) if isinstance(error, XVFLError) else traceback.format_exc()
            self._log_event({"event": "encoder_failed", "reason": reason})
            self._problem = f"its encoder is not trained: {type(error).__name__}; see its log"

    def _stored_manifest(self) -> UploadManifest | None:
        """Read the manifest of this version; None the first time."""
        path = self._folder / self._manifest_name
        return parse_manifest(path.read_text(encoding="utf-8")) if path.is_file() else None

    def _new_manifest(self, upload: Upload) -> UploadManifest:
        """Compute and store the manifest of this version."""
        manifest = upload.manifest(self.hello.session, self.hello.image, self._inputs.terms)
        self._folder.write_text(self._manifest_name, manifest.to_json())
        return manifest

    @property
    def _manifest_name(self) -> str:
        return f"encoders/{self._encoder.version}/{UPLOAD}"

    def _offer(self, message: AskUpload) -> UploadOffer:
        manifest = self._manifest
        if manifest is None or self._upload is None:
            return UploadOffer(message.request_id, 0, self.progress, "", self._problem)
        return UploadOffer(message.request_id, manifest.version, 1.0, manifest.to_json(), "")

    def _chunk(self, message: AskChunk) -> UploadChunk:
        self._check_version("AskChunk", message.version)
        assert self._manifest is not None and self._upload is not None
        if not 0 <= message.number < len(self._manifest.chunks):
            raise WireError(f"AskChunk: expected a chunk below {len(self._manifest.chunks)}")
        self._upload.leave_out(Withdrawn(self._folder).rows(self.hello.session))
        values, status = self._upload.chunk(message.number)
        if chunk_digest(values, status) != self._manifest.chunks[message.number]:
            # Two uploads of one version could be compared, and would not be accounted for.
            raise WireError(
                f"AskChunk: rows of this party have changed, or were withdrawn, since version "
                f"{message.version} was made; its operator can allow another one with `xvfl upload "
                "new-version --keep-encoder`"
            )
        return UploadChunk(message.request_id, values, status)

    def _check_version(self, what: str, version: int) -> None:
        if Withdrawn(self._folder).covers(version):
            raise WireError(f"{what}: this party has withdrawn version {version}")
        if self._manifest is None or version != self._manifest.version:
            raise WireError(
                f"{what}: this party does not offer an upload of version {version}; its operator "
                "chooses the version"
            )
