"""A party that uploads: it replies to matching, held-out list, requests for its upload, releases.

It trains its encoder alone. None of these messages names a net, a view, a batch or a step; every
other message is rejected.
"""

import threading
import traceback
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from xvfl.config import UploadTerms
from xvfl.errors import WireError, XVFLError
from xvfl.federation.party_worker import PartyWorker
from xvfl.federation.request_endpoint import RequestEndpoint
from xvfl.federation.upload.manifest import CREATED, Chunk, UploadManifest, chunk_digest
from xvfl.federation.upload.views import compute_views
from xvfl.matching.normalize import normalize_ids
from xvfl.service.matched_table import load_matched_table
from xvfl.service.party_inputs import PartyInputs
from xvfl.service.party_release import PartyFolder
from xvfl.service.uploads.changed_rows import NEW, REPLACED, WITHDRAWN, is_sent
from xvfl.service.uploads.party_encoder import (
    PartyEncoder,
    check_epsilon,
    current_part,
    current_version,
    is_trained,
    load_held_out,
    store_held_out,
    upload_record,
)
from xvfl.service.uploads.party_withdrawal import record_withdrawn_rows
from xvfl.service.uploads.withdrawn import Withdrawn
from xvfl.system.event_log import LogFunction, ProgressLog
from xvfl.trail.approvals import Approvals, Kind, NeedsApproval
from xvfl.wire.messages import (
    AskApproval,
    AskChunk,
    AskUpload,
    Done,
    HeldOut,
    Hello,
    Match,
    Message,
    Release,
    UploadChunk,
    UploadOffer,
    UploadStored,
)

CHUNK_BYTES = 2**22
"""Approximate bytes of the embeddings of a chunk."""
MAX_CHUNK_ROWS = 4096
COUNTED = ("part", "rows", "appended", "replaced")
BLOCK_ROWS = 256
"""Rows that are embedded at once: the last bits of an embedding depend on this number."""
WAITS = "it waits for its operator's approval (`xvfl approve`)"
ONLY_UPLOADS = (
    "this party uploads its embeddings once and takes no part in interactive training; its "
    "configuration would have to name it"
)


class Upload:
    """The matched rows of a trained encoder and their origins, chunk by chunk."""

    def __init__(
        self, encoder: PartyEncoder, worker: PartyWorker, rows: Tensor, origin: Tensor
    ) -> None:
        self._encoder, self._worker = encoder, worker
        self._rows, self._origin = rows.to(worker.table.device), origin.int()
        self._copies = encoder.config.copies
        row_bytes = 2 * encoder.width * (1 + self._copies)
        self._chunk_rows = max(1, min(CHUNK_BYTES // row_bytes, MAX_CHUNK_ROWS))

    def chunk(self, number: int, withdrawn: Sequence[int]) -> Chunk:
        """Compute a chunk: embed the rows that are sent."""
        start = number * self._chunk_rows
        part = slice(start, start + self._chunk_rows)
        origin = self._origin[part].clone()
        gone = [each - start for each in withdrawn if start <= each < start + len(origin)]
        origin[gone] = WITHDRAWN
        rows = self._rows[part][is_sent(origin).to(self._rows.device)]
        status = self._encoder.row_status(self._worker.table.take(rows).observed).cpu()
        blocks = torch.cat([rows, rows.new_zeros(-len(rows) % BLOCK_ROWS)]).view(-1, BLOCK_ROWS)
        empty = torch.zeros(0, 1 + self._copies, self._encoder.width, dtype=torch.float16)
        views = (compute_views(self._worker, block, self._copies).cpu() for block in blocks)
        return origin, torch.cat([empty, *views])[: len(rows)], status

    def manifest(
        self, hello: Hello, terms: UploadTerms, gone: Sequence[int], base: UploadManifest | None
    ) -> UploadManifest:
        """Compute the digests of all chunks, without the withdrawn rows."""
        count = -(-len(self._rows) // self._chunk_rows)
        digests = tuple(chunk_digest(self.chunk(number, gone)) for number in range(count))
        made = UploadManifest(
            party=self._encoder.name,
            version=self._encoder.version,
            session=hello.session,
            rows=len(self._rows),
            width=self._encoder.width,
            masked_copies=self._copies,
            image=hello.image,
            encoder=self._encoder.digest,
            chunk_rows=self._chunk_rows,
            chunks=digests,
            terms=terms,
            created=datetime.now(UTC).strftime(CREATED),
            withdrawn=len(gone),
            part=self._encoder.part,
            base=base.digest if base else "",
            appended=int((self._origin == NEW).sum()),
            replaced=int((self._origin == REPLACED).sum()),
            **self._encoder.noise,
        )
        made.check_base(base)
        return made


class UploadPartyService:
    """One party, in a process of its own or in the coordinator's process.

    It trains the encoder in a thread when the held-out rows are known.
    """

    def __init__(self, inputs: PartyInputs, log: LogFunction) -> None:
        """Load the state folder; reject a table that has changed since its ids were matched."""
        config, folder = inputs.config, inputs.folder
        self.inputs, self._folder, self._log = inputs, folder, log
        self._approvals = Approvals(folder.path, log)
        self.table = load_matched_table(inputs, log, self._use_match, ask=True)
        version = current_version(folder)
        check_epsilon(folder, config.encoder, version, config.limits)
        self._encoder = PartyEncoder(inputs, version, current_part(folder))
        self.record = upload_record(folder, version)
        replies: dict[type[Any], Callable[[Any], Message]] = {
            Match: self.table.reply,
            Release: PartyFolder(inputs.name, config, folder, log).reply,
            HeldOut: self.set_held_out,
            AskUpload: self._offer,
            AskChunk: self.chunk,
            UploadStored: self._set_stored,
            AskApproval: self._ask,
        }
        if config.secret is not None:
            # The embeddings leave this party as shares only, whatever is asked.
            del replies[AskUpload], replies[AskChunk]
        self.endpoint = RequestEndpoint(self.table.hello(), log, replies, ONLY_UPLOADS)
        self._upload: Upload | None = None
        self.manifest: UploadManifest | None = None
        """That of the upload; None before it can be sent."""
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self.progress = 0.0
        """Finished share of the encoder's training."""
        self.uploaded = False
        """Whether the coordinator has stored the whole upload."""
        self.problem = ""
        """Why there is no upload, in words that may be sent."""
        if self._encoder.privacy is not None:
            log({"event": "differential_privacy", **self._encoder.privacy.to_dict()})
        self._use_match()

    def status(self) -> dict[str, Any]:
        """Describe the encoder and what left this party; numbers become metrics."""
        manifest, privacy = self.manifest, self._encoder.privacy
        return {
            "encoder_version": self._encoder.version,
            "encoder_progress": round(self.progress, 3),
            "encoder_problem": self.problem,
            "encoder_failed": int(bool(self.problem) and not self.problem.startswith(WAITS)),
            "upload_stored": int(self.uploaded),
            "upload_bytes": manifest.n_bytes if manifest else 0,
            "upload_created": manifest.created if manifest else "",
            **{f"upload_{name}": getattr(manifest, name, 0) for name in COUNTED},
            **(privacy.status() if privacy else {}),
        }

    def _use_match(self) -> None:
        """Use the matched rows of the table; train if the held-out rows are known."""
        record_withdrawn_rows(self.inputs, self.table)
        if self.endpoint.hello.session not in ("", self.table.hello().session):
            # Ids were matched again: nothing that was made before is offered.
            self.close()
            self._stop, self._thread = threading.Event(), None
            self.manifest, self.problem = None, ""
        self.endpoint.hello = self.table.hello()
        if load_held_out(self._folder, self.endpoint.hello.session) is not None:
            self._start_training()

    def close(self) -> None:
        """Stop the training; it writes a checkpoint."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def set_held_out(self, message: HeldOut) -> Done:
        """Train without these rows."""
        held_out, n_rows = message.handles, len(self._rows("HeldOut"))
        if digest := store_held_out(self._folder, self.endpoint.hello.session, held_out, n_rows):
            self._log({"event": "held_out", "rows": len(held_out), "digest": digest})
        self._start_training()
        return Done(message.request_id, 0)

    def _set_stored(self, message: UploadStored) -> Done:
        manifest = self._check_version("UploadStored", message.version)
        if message.digest != manifest.digest:
            raise WireError("UploadStored: expected the digest of the upload that is offered")
        if not self.uploaded:
            self.uploaded = True
            self.record.set_stored(message.digest)
            event = {"event": "upload_stored", "version": message.version, "part": manifest.part}
            self._log({**event, "digest": message.digest, **self.status()})
        return Done(message.request_id, 0)

    def _ask(self, message: AskApproval) -> Done:
        """Show the operator what the coordinator would like; nothing else happens."""
        kinds: tuple[Kind, ...] = ("new-version", "new-upload", "new-rows")
        for kind in kinds:
            if message.kind == kind:
                self._approvals.ask(kind, f"the coordinator asks for it: {message.reason}")
                return Done(message.request_id, 0)
        raise WireError(f"AskApproval: expected one of {', '.join(kinds)}")

    def _rows(self, what: str) -> NDArray[np.int64]:
        if self.table.match is None:
            raise WireError(f"{what}: ids are not matched yet; run `xvfl align` first")
        return self.table.match.rows

    def _start_training(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._train, name="encoder", daemon=True)
            self._thread.start()

    def _train(self) -> None:
        """Train the encoder and compute the manifest; log every error."""
        try:
            matched, session = self._rows("HeldOut"), self.endpoint.hello.session
            held_out = load_held_out(self._folder, session) or []
            version, withdrawn = self._encoder.version, Withdrawn(self._folder)
            if withdrawn.covers(version):
                raise NeedsApproval(
                    "new-version",
                    f"version {version} was withdrawn; allow the next version with `xvfl upload "
                    "new-version`",
                )
            gone = withdrawn.rows(session)
            learned = np.setdiff1d(np.arange(len(self.table.ids)), matched[[*held_out, *gone]])
            texts = normalize_ids(self.table.ids, self.inputs.config.matching.rule, "table")
            ids, trained = self.record.digest_ids(texts), is_trained(self._folder, version)
            self.record.check_learned(ids[learned], ids[matched[held_out]], trained)
            started = {"version": version, "rows": len(learned), "held_out": len(held_out)}
            if not trained:
                self._log({"event": "encoder_training", **started})
            progress = ProgressLog(self._log, {"event": "encoder_progress"})

            def report(text: str, share: float) -> None:
                self.progress = share
                progress(round(100 * share), 100)

            worker = self._encoder.train(torch.from_numpy(learned), self._stop, report)
            if worker is None:
                return
            if not trained:
                self._log({"event": "encoder_trained", "version": version})
            manifest = self._make(worker, ids[matched], gone)
            self.uploaded, self.progress, self.manifest = self.record.stored, 1.0, manifest
        except NeedsApproval as error:
            self._approvals.ask(error.kind, error.reason)
            self.problem = f"{WAITS}: {error.kind}"
        except Exception as error:
            # The endpoint goes on. The message may contain the party's data: it is not sent.
            reason = str(error) if isinstance(error, XVFLError) else traceback.format_exc()
            self._log({"event": "encoder_failed", "reason": reason})
            self.problem = f"its encoder is not trained: {type(error).__name__}; see its log"

    def _make(
        self, worker: PartyWorker, ids: NDArray[np.int64], gone: Sequence[int]
    ) -> UploadManifest:
        """Make the part that the operator has allowed, if it is not made yet."""
        record, part, last = self.record, self._encoder.part, self.record.manifest
        inputs, matched = self.inputs, self._rows("HeldOut")
        made = last if last is not None and last.part == part else None
        if made is None:
            rows = record.compare(worker, ids, matched, gone, part)
            most, version = int(rows["releases"].max(initial=1)), self._encoder.version
            check_epsilon(inputs.folder, inputs.config.encoder, version, inputs.config.limits, most)
            record.save_rows(part, rows)
        elif made.session != self.endpoint.hello.session:
            raise NeedsApproval(
                "new-rows" if record.stored else "new-upload",
                f"the upload of version {made.name} was made for another alignment; run `xvfl "
                "upload new-rows`, or `xvfl upload new-version` for another encoder",
            )
        origin = torch.from_numpy(record.rows(part)["origin"])
        self._upload = Upload(self._encoder, worker, torch.from_numpy(matched), origin)
        if made is None:
            made = self._upload.manifest(self.endpoint.hello, inputs.config.upload, gone, last)
            record.save(made)
        return made

    def _offer(self, message: AskUpload) -> UploadOffer:
        manifest = self.manifest
        if manifest is None:
            # While its operator decides, the coordinator waits, as for a training.
            problem = "" if self.problem.startswith(WAITS) else self.problem
            return UploadOffer(message.request_id, 0, self.progress, "", problem)
        return UploadOffer(message.request_id, manifest.version, 1.0, manifest.to_json(), "")

    def chunk(self, message: AskChunk) -> UploadChunk:
        """Compute a chunk of the upload."""
        version, number = message.version, message.number
        digests = self._check_version("AskChunk", version).chunks
        assert self._upload is not None
        if not 0 <= number < len(digests):
            raise WireError(f"AskChunk: expected a chunk below {len(digests)}")
        withdrawn = Withdrawn(self._folder).rows(self.endpoint.hello.session)
        chunk = self._upload.chunk(number, withdrawn)
        if chunk_digest(chunk) != digests[number]:
            # Two uploads of one version could be compared, and would not be accounted for.
            self._approvals.ask("new-upload", "rows have changed, or were withdrawn, meanwhile")
            raise WireError(
                f"AskChunk: rows of this party have changed, or were withdrawn, since version "
                f"{version} was made; its operator can allow another one with `xvfl upload "
                "new-version --keep-encoder`"
            )
        return UploadChunk(message.request_id, *chunk)

    def _check_version(self, what: str, version: int) -> UploadManifest:
        if Withdrawn(self._folder).covers(version):
            raise WireError(f"{what}: this party has withdrawn version {version}")
        if self.manifest is None or version != self.manifest.version:
            raise WireError(
                f"{what}: this party does not offer an upload of version {version}; its operator "
                "chooses the version"
            )
        return self.manifest
