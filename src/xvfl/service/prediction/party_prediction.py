"""A party that predicts: its prediction table, matched anew, with the nets of the last run."""

import secrets
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from xvfl.config import LossConfig
from xvfl.data.images import Images
from xvfl.data.sources import Source, encode, source_columns, source_ids, take_rows
from xvfl.dataset.in_memory import to_party_table
from xvfl.errors import InputError, RunError, WireError
from xvfl.federation.build import build_parties
from xvfl.federation.party_worker import PartyWorker
from xvfl.federation.prediction_endpoint import PredictionEndpoint, PredictionRows
from xvfl.federation.prediction_ledger import COUNTS, PredictionLedger, PredictionLimits
from xvfl.matching.alignment import PartyAlignment, load_party_alignment
from xvfl.methods.members import member_seeds
from xvfl.model.fitting import choose_device
from xvfl.model.run_dir import RunDir
from xvfl.model.workflow import ENCODER
from xvfl.nets.party_net import PartyNet
from xvfl.options import resolve_saved
from xvfl.primitives.rows import observation_levels
from xvfl.service.config import ALIGNMENT, MatchingConfig
from xvfl.service.log import LogFunction
from xvfl.service.party_matching import MatchingService
from xvfl.service.party_release import RUN, PartyFolder, PartyParts, release_event
from xvfl.service.uploads.party_encoder import HELD_OUT, load_parts
from xvfl.wire.messages import Done, Hello, Release

PREDICTION = "prediction"
"""Subfolder of the state folder: alignment and counts of the prediction table."""


class PartyPredictor:
    """One party, with the rows that its operator opened for prediction.

    Parameters
    ----------
    name
        Name of the party.
    folder
        State folder of the finished run.
    source
        The prediction table.
    matching
        Rule and limits of private id matching.
    limits
        Budgets.
    device
        Device of the nets.
    log
        Receives log events.
    again
        Match ids once more, although they are matched.
    release_key
        Public key that verifies a release.
    id_column
        The id column, for the released model.
    """

    def __init__(
        self,
        name: str,
        folder: RunDir,
        source: Source,
        matching: MatchingConfig,
        limits: PredictionLimits,
        device: str,
        log: LogFunction,
        again: bool = False,
        release_key: Path | None = None,
        id_column: str | None = None,
    ) -> None:
        uploads = folder.has(HELD_OUT)
        if not uploads and not (folder.has(RUN) and folder.has(ENCODER)):
            raise RunError(
                f"{folder.path}: no finished run to predict with; train first with `xvfl party`"
            )
        self.name, self._folder, self._source, self._limits = name, folder, source, limits
        load_upload = partial(load_parts, folder) if uploads else None
        self._state = PartyFolder(name, folder, release_key, id_column, load_upload)
        self._device, self._log = device, log
        self.ids, columns = source_ids(source), source_columns(source)
        self.state = RunDir(folder / PREDICTION).create()
        path = self.state / ALIGNMENT
        self._alignment = self._load_alignment(path, columns)
        if again and self._alignment is not None:
            self._alignment = None
            path.unlink()
        self._process_id = secrets.token_hex(8)
        self._matching = MatchingService(
            self.ids, columns, matching, path, log, self._set_alignment
        )
        # The operator started this process: forget unfinished sessions.
        self._matching.allow_sessions()
        self.endpoint = PredictionEndpoint(
            self.hello(), self._open_rows, self._matching.reply, self._install, log
        )

    def hello(self) -> Hello:
        """Describe this party to the coordinator."""
        match = self._alignment.match if self._alignment else None
        return Hello(
            0,
            self._process_id,
            isinstance(self._source, Images),
            len(match.rows) if match else 0,
            "",
            match.session.hex() if match else "",
            "prediction",
        )

    def handles(self) -> Tensor:
        """Return the handle of each row of the table, −1 where it is not matched. (n,)"""
        handles = torch.full((len(self.ids),), -1)
        if self._alignment is not None:
            rows = torch.from_numpy(self._alignment.match.rows)
            handles[rows] = torch.arange(len(rows))
        return handles

    def _load_alignment(self, path: Path, columns: list[str]) -> PartyAlignment | None:
        """Load the alignment of the prediction table; a new table has new counts."""
        if not path.is_file():
            return None
        alignment = load_party_alignment(path)
        try:
            alignment.table.check(columns, self.ids, "prediction table")
        except InputError as error:
            self._log({"event": "prediction_table_changed", "reason": str(error)})
            path.unlink()
            (self.state / COUNTS).unlink(missing_ok=True)
            return None
        return alignment

    def _set_alignment(self, alignment: PartyAlignment) -> None:
        self._alignment = alignment
        self.endpoint.hello = self.hello()
        self.endpoint.close_rows()

    def _install(self, message: Release) -> Done:
        self._log(release_event(self._state.install(message)))
        return Done(message.request_id, 0)

    def _open_rows(self, run: str) -> PredictionRows:
        if self._alignment is None:
            raise WireError("OpenPrediction: the ids of the prediction table are not matched yet")
        parts = self._state.load_parts(run, "OpenPrediction")
        if parts.privacy.epsilon is not None:
            raise WireError(
                "OpenPrediction: the run has differential privacy, and the embeddings of new rows "
                "would not be accounted for"
            )
        rows, layout = self._alignment.match.rows, parts.encoder.layout
        table = to_party_table(layout, encode(parts.encoder, take_rows(self._source, rows)))
        device = choose_device(self._device)
        net = self._load_net(parts).to(device)
        worker = PartyWorker(self.name, net, table.to(device), member_seeds([0], parts.net.members))
        return PredictionRows(
            run,
            worker,
            rows,
            observation_levels(table.observed, parts.full_threshold),
            table.observed.float().mean(1),
            PredictionLedger(self._limits, len(self.ids), self.state.path, log_event=self._log),
        )

    def _load_net(self, parts: PartyParts) -> PartyNet:
        """Build the party's net with its final weights."""
        loss, privacy, layout = LossConfig(method=parts.method), parts.privacy, parts.encoder.layout
        config, loss = resolve_saved(parts.net, loss, privacy, image=layout.image is not None)
        with torch.random.fork_rng(devices=[]):
            nets = build_parties({self.name: layout}, config, loss, [0], privacy=privacy)
        net = nets[self.name]
        net.load_state_dict(dict(parts.weights))
        return net
