"""A party's part in a federation: match ids, encode rows, train its net, install a release."""

from typing import Any

import numpy as np
from torch import Tensor

from xvfl.config import LossConfig
from xvfl.data.encoder import encoder_from_dict
from xvfl.data.sources import Encoder, encode, fit_encoder, take_rows
from xvfl.dataset.in_memory import to_party_table
from xvfl.errors import WireError
from xvfl.federation.endpoint import Endpoint, PartyRun
from xvfl.federation.party_worker import PartyWorker
from xvfl.federation.run_settings import RunSettings
from xvfl.matching import PartyMatch
from xvfl.methods.build import build_parties
from xvfl.methods.members import member_seeds
from xvfl.model.cell_filler import save_own_cells
from xvfl.model.fitting import choose_device
from xvfl.model.workflow import ENCODER
from xvfl.primitives.masks import choose_unmasked_share
from xvfl.primitives.rows import choose_full_threshold, observation_levels
from xvfl.service.checkpoints import Checkpoints
from xvfl.service.log import LogFunction
from xvfl.service.matched_table import load_matched_table
from xvfl.service.party_inputs import PartyInputs
from xvfl.service.party_release import PartyFolder
from xvfl.service.secret import load_secret, run_seed
from xvfl.wire.messages import Match, Release


class PartyService:
    """One party, in a process of its own or in the coordinator's process."""

    def __init__(self, inputs: PartyInputs, log: LogFunction) -> None:
        """Load the state folder; reject a table that has changed since its ids were matched."""
        self.inputs = inputs
        self.table = load_matched_table(inputs, log, self._use_match)
        self._folder = PartyFolder(inputs.name, inputs.config, inputs.folder, log)
        self.endpoint = Endpoint(
            self.table.hello(),
            self._start_run,
            Checkpoints(inputs.folder),
            log,
            {Match: self.table.reply, Release: self._folder.reply},
        )

    def close(self) -> None:
        """Do nothing: the run continues from the last common checkpoint."""

    def status(self) -> dict[str, Any]:
        """Describe the run for the status server; numbers become metrics."""
        endpoint = self.endpoint
        return {
            "state": "training" if endpoint.run else "waiting",
            "run": endpoint.run,
            "step": endpoint.step,
            "updates_applied": endpoint.last_update,
        }

    def _use_match(self) -> None:
        self.endpoint.hello = self.table.hello()

    def _start_run(self, settings: RunSettings, training: Tensor) -> PartyRun:
        """Encode the matched rows and build the net."""
        match = self.table.match
        if match is None:
            raise WireError("Begin: ids are not matched yet; run `xvfl align` first")
        name, device = self.inputs.name, choose_device(self.inputs.config.device)
        self.inputs.config.limits.check(settings)
        folder = self.inputs.folder
        encoder = self._encoder(match, training)
        rows = encode(encoder, take_rows(self.inputs.source, match.rows))
        table = to_party_table(encoder.layout, rows)
        seeds = [run_seed(load_secret(folder), settings.run)]
        loss = LossConfig(method=settings.method)
        nets = build_parties(
            {name: encoder.layout}, settings.net, loss, seeds, privacy=settings.privacy
        )
        observed = table.observed[training] if len(training) else table.observed
        worker = PartyWorker(
            name,
            nets[name].to(device),
            table.to(device),
            member_seeds(seeds, settings.net.members),
            settings.reconstruction,
            image_shift=settings.train.image_shift,
            unmasked=choose_unmasked_share(encoder.layout, observed, settings.unmasked_copies),
        )
        full_threshold = settings.full_threshold or choose_full_threshold(observed)
        if not folder.has(ENCODER):
            learned = table.take(training) if len(training) else table
            save_own_cells(folder, name, encoder, learned, seeds[0])
            folder.write_json(ENCODER, encoder.to_dict())
        self._folder.save_run(settings, full_threshold)
        levels = observation_levels(table.observed, full_threshold)
        return PartyRun(worker, levels)

    def _encoder(self, match: PartyMatch, training: Tensor) -> Encoder:
        """Load the encoder; before the first accepted run, fit it on the training rows."""
        folder, name = self.inputs.folder, self.inputs.name
        if folder.has(ENCODER):
            return encoder_from_dict(folder.read_json(ENCODER))
        rows = np.sort(match.rows[training.numpy()])
        return fit_encoder([take_rows(self.inputs.source, rows)], self.inputs.config.options, name)
