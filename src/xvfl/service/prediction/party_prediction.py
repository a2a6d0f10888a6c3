"""A party that predicts: its prediction table, matched anew, with the nets of the last run."""

from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from xvfl.config import LossConfig
from xvfl.data.sources import encode, take_rows
from xvfl.dataset.in_memory import to_party_table
from xvfl.errors import InputError, RunError, WireError
from xvfl.federation.party_worker import PartyWorker
from xvfl.federation.prediction_endpoint import PredictionEndpoint, PredictionRows
from xvfl.federation.prediction_ledger import PredictionLedger, PredictionLimits, forget_rows
from xvfl.federation.upload.manifest import encoder_version
from xvfl.methods.build import build_parties, shares_inputs
from xvfl.methods.members import member_seeds
from xvfl.model.fitting import choose_device
from xvfl.model.run_dir import RunDir
from xvfl.model.workflow import ENCODER
from xvfl.nets import NoCompleter
from xvfl.nets.party_net import PartyNet
from xvfl.options import resolve_saved
from xvfl.primitives.rows import observation_levels
from xvfl.service.config import ALIGNMENT
from xvfl.service.matched_table import MatchedTable
from xvfl.service.party_inputs import PartyInputs
from xvfl.service.party_release import RUN, PartyFolder
from xvfl.service.uploads.party_encoder import HELD_OUT, PartyParts
from xvfl.service.uploads.party_withdrawal import IDS, find_withdrawn
from xvfl.service.uploads.withdrawn import Withdrawn
from xvfl.system.event_log import LogFunction
from xvfl.trail.approvals import Approvals
from xvfl.wire.messages import Match, Release

PREDICTION = "prediction"
"""Subfolder of the state folder: alignment and counts of the prediction table."""


def require_trained(folder: RunDir) -> None:
    """Raise `RunError` if a party has no encoder that could predict."""
    if not folder.has(HELD_OUT) and not (folder.has(RUN) and folder.has(ENCODER)):
        raise RunError(
            f"{folder.path}: no finished run to predict with; train first with `xvfl party`"
        )


class PartyPredictor:
    """One party, with the rows that its operator opened for prediction.

    Parameters
    ----------
    inputs
        The prediction table, with the state folder of the finished run.
    limits
        Budgets.
    log
        Receives log events.
    again
        Match ids once more, although they are matched.
    """

    def __init__(
        self,
        inputs: PartyInputs,
        limits: PredictionLimits,
        log: LogFunction,
        again: bool = False,
    ) -> None:
        folder = inputs.folder
        self.inputs, self._limits, self._log = inputs, limits, log
        self._state = PartyFolder(inputs.name, inputs.config, folder, log)
        self._withdrawn: tuple[int, NDArray[np.bool_]] | None = None
        self.state = RunDir(folder / PREDICTION).create()
        path = self.state / ALIGNMENT
        self.table = MatchedTable(
            inputs.source,
            path,
            inputs.config.matching,
            log,
            self._use_match,
            "prediction",
            approvals=Approvals(folder.path, log),
        )
        self._forget_other_table()
        if again:
            self.table.forget()
        # The operator started this process: forget unfinished sessions.
        self.table.allow_sessions()
        self.endpoint = PredictionEndpoint(
            self.table.hello(),
            self._open_rows,
            {Match: self.table.reply, Release: self._state.reply},
            log,
        )

    def status(self) -> dict[str, Any]:
        """Describe the use of the budgets for the status server; numbers become metrics."""
        used = self.endpoint.usage
        return {"state": "predicting", "predicting": True, **used} if used else {}

    def close(self) -> None:
        """Do nothing: requests are counted when they are answered."""

    def handles(self) -> Tensor:
        """Return the handle of each row of the table, −1 where it is not matched. (n,)"""
        handles = torch.full((len(self.table.ids),), -1)
        if (match := self.table.match) is not None:
            handles[torch.from_numpy(match.rows)] = torch.arange(len(match.rows))
        return handles

    def _forget_other_table(self) -> None:
        """Forget the alignment of another table; a new table has new counts."""
        try:
            self.table.check("prediction table")
        except InputError as error:
            self._log({"event": "prediction_table_changed", "reason": str(error)})
            self.table.forget()
            forget_rows(self.state.path)

    def _use_match(self) -> None:
        self.endpoint.hello = self.table.hello()
        self.endpoint.close_rows()

    def _open_rows(self, run: str) -> PredictionRows:
        if (match := self.table.match) is None:
            raise WireError("OpenPrediction: the ids of the prediction table are not matched yet")
        parts = self._state.load_parts(run, "OpenPrediction")
        if parts.privacy.epsilon is not None:
            raise WireError(
                "OpenPrediction: the run has differential privacy, and the embeddings of new rows "
                "would not be accounted for"
            )
        rows, layout = match.rows, parts.encoder.layout
        table = to_party_table(layout, encode(parts.encoder, take_rows(self.inputs.source, rows)))
        device = choose_device(self.inputs.config.device)
        net = self._load_net(parts)
        if encoder_version(run) is not None:
            # The decoder of an encoder that was trained alone completes nothing for others.
            net.completer = NoCompleter()
        worker = PartyWorker(
            self.inputs.name, net.to(device), table.to(device), member_seeds([0], parts.net.members)
        )
        levels = observation_levels(table.observed, parts.full_threshold)
        ledger = PredictionLedger(
            self._limits, len(self.table.ids), self.state.path, log_event=self._log
        )
        withdrawn = partial(self._find_withdrawn, encoder_version(run))
        shares = table.observed.float().mean(1)
        return PredictionRows(run, worker, rows, levels, shares, ledger, withdrawn)

    def _find_withdrawn(self, version: int | None) -> NDArray[np.bool_] | None:
        """Return which rows of the table were withdrawn, also while this process runs.

        All were, if the version of the encoder was.
        """
        if version is not None and Withdrawn(self.inputs.folder).covers(version):
            return np.ones(len(self.table.ids), dtype=np.bool_)
        path = self.inputs.folder / IDS
        if not path.is_file():
            return None
        changed = path.stat().st_mtime_ns
        if self._withdrawn is None or self._withdrawn[0] != changed:
            found = find_withdrawn(
                self.inputs.folder, self.table.ids, self.inputs.config.matching.rule
            )
            self._withdrawn = changed, found
        return self._withdrawn[1]

    def _load_net(self, parts: PartyParts) -> PartyNet:
        """Build the party's net with its final weights."""
        loss, privacy, layout = LossConfig(method=parts.method), parts.privacy, parts.encoder.layout
        config, loss = resolve_saved(parts.net, loss, privacy, image=layout.image is not None)
        with torch.random.fork_rng(devices=[]):
            nets = build_parties(
                {self.inputs.name: layout},
                config,
                loss,
                [0],
                privacy=privacy,
                shared_inputs=shares_inputs(parts.weights),
            )
        net = nets[self.inputs.name]
        net.load_state_dict(dict(parts.weights))
        return net
