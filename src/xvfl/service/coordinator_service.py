"""The coordinator's part in a federation, over any transport: labels, alignment, run, status."""

from collections.abc import Mapping
from threading import Event
from typing import Any

import torch

from xvfl.data.frames import read_frame
from xvfl.data.labels import read_labels
from xvfl.errors import WireError
from xvfl.federation.remote_party import RemoteParty
from xvfl.federation.upload.heads import check_head_options
from xvfl.matching.alignment import CoordinatorAlignment, load_coordinator_alignment
from xvfl.methods import require_task
from xvfl.model.dashboard.state_folder import describe_coordinator
from xvfl.model.run_dir import MANIFEST
from xvfl.options import resolve_privacy
from xvfl.service.align import match_parties
from xvfl.service.config import ALIGNMENT, CoordinatorConfig
from xvfl.service.coordinator_run import CoordinatorRun
from xvfl.service.head_store import HeadStore
from xvfl.service.labeled_rows import MatchedLabels
from xvfl.service.release import check_releasable, load_signing_key
from xvfl.service.run_description import RunOutcome, connected_parties
from xvfl.service.secret_config import refuse_plain
from xvfl.service.state_dir import open_state_dir
from xvfl.service.uploads.upload_run import UploadRun
from xvfl.service.uploads.upload_store import find_upload
from xvfl.system.signals import interruptible
from xvfl.training.threads import limit_threads
from xvfl.wire.messages import Hello
from xvfl.wire.transport import Transport


class CoordinatorService:
    """State folder, log, labels and alignment of a coordinator, and its run."""

    def __init__(self, config: CoordinatorConfig, show: bool = True, retrain: bool = False) -> None:
        """Load the labels and the state folder; create the release key if it is missing.

        `retrain` trains another head on the stored uploads.
        """
        check_releasable(config.loss, config.release_to)
        require_task(config.loss.method, config.labels.task)
        self.config, self._retrain = config, retrain
        if self.uploads:
            check_head_options(config.net, config.loss, config.privacy)
        self.folder, self.log = open_state_dir(config, "coordinator", show)
        # Create release.pub now: parties need it before training ends.
        load_signing_key(self.folder, config.signing_key)
        self.labels = read_labels(
            config.labels.table,
            id_column=config.labels.id_column,
            column=config.labels.column,
            where="labels",
            allow_missing=self.uploads,
            task=config.labels.task,
        )
        self.ids = list(self.labels.index)
        if self.uploads:
            # Rows without a label are matched too: heads may learn from them.
            frame = read_frame(config.labels.table, config.labels.id_column, "labels")
            self.ids = list(frame.index)
        self.alignment = self._load_alignment()
        self.parties: list[RemoteParty] = []
        self._columns: dict[str, str] = {}
        self._run: CoordinatorRun | UploadRun | None = None

    def connect(self, transports: Mapping[str, Transport]) -> None:
        """Set the transports to all parties."""
        names, timeout = self.config.all_parties, self.config.timeouts.answer
        self.parties = [RemoteParty(name, transports[name], timeout) for name in names]

    def run(self, stop: Event) -> RunOutcome:
        """Match ids with new parties, then train until the run is finished or `stop` is set."""
        refuse_plain(self.config.secret, "`xvfl coordinator`")
        with interruptible(stop):
            matched = MatchedLabels(self.labels, self.ids, self._align())
        with limit_threads(False, torch.device("cpu")), torch.random.fork_rng(devices=[]):
            if self.uploads:
                self._run = UploadRun(self.config, matched, self.parties, self.log, self._retrain)
                return self._run.run(stop)
            with interruptible(stop):
                self._run = CoordinatorRun(self.config, matched, self.parties, self.log)
            return self._run.run(stop)

    @property
    def uploads(self) -> bool:
        """Whether parties train alone and upload; otherwise training is interactive."""
        return not resolve_privacy(self.config.privacy, federated=True).sends_gradients

    @property
    def needs_parties(self) -> bool:
        """Whether a party must connect before heads can be trained."""
        names, matches = set(self.config.all_parties), self._matches
        head = HeadStore(self.folder).current
        if self.config.on_anomaly == "leave_out" and head.has(MANIFEST):
            names -= {*head.manifest().get("left_out", [])}
        return not self.uploads or any(
            name not in matches
            or find_upload(self.folder, name, matches[name].session.hex()) is None
            for name in names
        )

    def status(self) -> dict[str, Any]:
        """Return the status of the run; before training, which parties are connected."""
        if self._run is not None:
            return self._run.status()
        connected = connected_parties(self.parties)
        absent = ", ".join(name for name, value in connected.items() if not value)
        return {
            "healthy": not absent,
            "problem": f"the run waits for {absent}" if absent else "",
            "side": "coordinator",
            **describe_coordinator(self.folder.path),
            "state": "matching",
            "waiting": True,
            "party_present": connected,
            "party_matched": {name: int(name in self._matches) for name in connected},
        }

    def check_hello(self, name: str, hello: Hello) -> None:
        """Reject a party whose rows or columns are not the matched ones."""
        match = self._matches.get(name)
        if match is not None and hello.session != match.session.hex():
            raise WireError(
                f"party {name!r}: its ids were matched in session {hello.session or 'none'!r}, "
                f"here in {match.session.hex()!r}; restore the party's alignment.json, or delete "
                "it on both sides and match again"
            )
        if match is not None and hello.rows != (rows := int((match.handles >= 0).sum())):
            raise WireError(f"party {name!r}: expected {rows} matched rows, got {hello.rows}")
        if self._columns.setdefault(name, hello.columns) != hello.columns:
            raise WireError(f"party {name!r}: its columns changed since it first connected")

    @property
    def _matches(self) -> Mapping[str, Any]:
        return self.alignment.matches if self.alignment else {}

    def _align(self) -> CoordinatorAlignment:
        """Match ids with every party that is not matched yet."""
        new = {each.name: each.transport for each in self.parties if each.name not in self._matches}
        if new or self.alignment is None:
            self.alignment = match_parties(
                new,
                self.ids,
                [self.config.labels.column],
                self.config.matching,
                self.folder / ALIGNMENT,
                self.log,
                self.config.timeouts.join,
                end=False,
                approval_s=self.config.timeouts.join,
            )
        return self.alignment

    def _load_alignment(self) -> CoordinatorAlignment | None:
        """Load the alignment of this folder, if there is one."""
        if not self.folder.has(ALIGNMENT):
            return None
        alignment = load_coordinator_alignment(self.folder / ALIGNMENT)
        # Another label column of the same rows needs no new match.
        columns = alignment.labels.columns if self.uploads else [self.config.labels.column]
        labeled = list(self.labels.index)
        if len(labeled) == alignment.labels.rows != len(self.ids):
            # Version 0.3 matched rows with a label only.
            self.ids = labeled
        alignment.labels.check(columns, self.ids, "labels")
        return alignment
