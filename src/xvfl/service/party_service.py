"""A party's part in a federation: match ids, encode rows, train its net, install a release."""

from threading import Thread
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
from xvfl.model.run_dir import CELLS
from xvfl.model.workflow import ENCODER
from xvfl.primitives.masks import choose_unmasked_share
from xvfl.primitives.rows import PartyTable, choose_full_threshold, observation_levels
from xvfl.service.checkpoints import Checkpoints
from xvfl.service.matched_table import load_matched_table
from xvfl.service.party_inputs import PartyInputs
from xvfl.service.party_release import PartyFolder
from xvfl.service.secret import load_secret, run_seed
from xvfl.system.event_log import LogFunction
from xvfl.wire.messages import Done, Match, Release


class PartyService:
    """One party, in a process of its own or in the coordinator's process."""

    def __init__(self, inputs: PartyInputs, log: LogFunction) -> None:
        """Load the state folder; reject a table that has changed since its ids were matched."""
        self.inputs, self._log = inputs, log
        self._cells: Thread | None = None
        self.table = load_matched_table(inputs, log, self._use_match, ask=True)
        self._folder = PartyFolder(inputs.name, inputs.config, inputs.folder, log)
        self.endpoint = Endpoint(
            self.table.hello(),
            self._start_run,
            Checkpoints(inputs.folder),
            log,
            {Match: self.table.reply, Release: self._install},
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
            folder.write_json(ENCODER, encoder.to_dict())
        if not folder.has(CELLS) and self._cells is None:
            learned = table.take(training) if len(training) else table
            self._cells = Thread(target=self._fit_cells, args=(encoder, learned, seeds[0]))
            self._cells.daemon = True
            self._cells.start()
        self._folder.save_run(settings, full_threshold)
        levels = observation_levels(table.observed, full_threshold)
        return PartyRun(worker, levels)

    def _fit_cells(self, encoder: Encoder, learned: PartyTable, seed: int) -> None:
        """Fit the model of cells beside the training: the coordinator does not wait for it."""
        try:
            save_own_cells(self.inputs.folder, self.inputs.name, encoder, learned, seed)
        except Exception as error:
            self._log({"event": "cells_not_fitted", "problem": repr(error)})

    def _install(self, message: Release) -> Done:
        """Install a released head, with the model of cells."""
        if self._cells is not None:
            self._cells.join()
        return self._folder.reply(message)

    def _encoder(self, match: PartyMatch, training: Tensor) -> Encoder:
        """Load the encoder; before the first accepted run, fit it on the training rows."""
        folder, name = self.inputs.folder, self.inputs.name
        if folder.has(ENCODER):
            return encoder_from_dict(folder.read_json(ENCODER))
        rows = np.sort(match.rows[training.numpy()])
        return fit_encoder([take_rows(self.inputs.source, rows)], self.inputs.config.options, name)
