"""A party's own work: its table, its half of the alignment, its encoder, its nets."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from xvfl.config import LossConfig, TableOptions
from xvfl.data.encoder import encoder_from_dict
from xvfl.data.images import Images
from xvfl.data.sources import (
    Encoder,
    Source,
    encode,
    fit_encoder,
    source_columns,
    source_ids,
    take_rows,
)
from xvfl.dataset.in_memory import to_party_table
from xvfl.errors import WireError
from xvfl.federation.build import build_parties
from xvfl.federation.endpoint import Endpoint, PartyRun
from xvfl.federation.party_worker import PartyWorker
from xvfl.federation.run_settings import RunSettings
from xvfl.matching.alignment import PartyAlignment, TableFingerprint, load_party_alignment
from xvfl.matching.party_session import PartyMatch
from xvfl.matching.responder import Responder
from xvfl.model.fitting import choose_device
from xvfl.model.run_dir import RunDir
from xvfl.model.workflow import ENCODER, read_source
from xvfl.primitives.rows import choose_full_threshold, observation_levels
from xvfl.service.checkpoints import Checkpoints
from xvfl.service.config import ALIGNMENT, MatchingConfig, PartyProcessConfig
from xvfl.service.release import take_release
from xvfl.wire.messages import Done, Hello, Match, Matched, Message, Release

Note = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Own:
    """What a party brings."""

    name: str
    source: Source
    options: TableOptions
    folder: RunDir
    matching: MatchingConfig
    id_column: str | None = None
    """Its id column."""
    release_key: Path | None = None
    device: str = "cpu"

    @classmethod
    def of(cls, name: str, config: PartyProcessConfig, folder: RunDir) -> "Own":
        """Read what a party's configuration names."""
        return cls(
            name,
            read_source(config.table, config.id_column, name),
            config.options,
            folder,
            config.matching,
            config.id_column,
            Path(config.release_key) if config.release_key else None,
            config.device,
        )


class PartyWork:
    """One party, in a process of its own or in the coordinator's."""

    def __init__(self, own: Own, note: Note) -> None:
        """Take up what is in the folder; a table that changed since matching is refused."""
        self.own, self._note = own, note
        self.ids = source_ids(own.source)
        self._alignment: PartyAlignment | None = None
        if own.folder.has(ALIGNMENT):
            self._alignment = load_party_alignment(own.folder / ALIGNMENT)
            self._alignment.table.check(source_columns(own.source), self.ids, f"party {own.name!r}")
        self._life = secrets.token_hex(8)
        with_ids = own.matching
        self._responder = Responder(
            self.ids, with_ids.rule, self._keep, with_ids.n_threads or None, with_ids.max_ids
        )
        self._settings: RunSettings | None = None
        self.endpoint = self._endpoint()

    @property
    def aligned(self) -> bool:
        """Whether ids were matched."""
        return self._alignment is not None

    def hello(self) -> Hello:
        """Say who this is and what it brings."""
        match = self._alignment.match if self._alignment else None
        columns = blake2b(repr(sorted(source_columns(self.own.source))).encode(), digest_size=8)
        return Hello(
            0,
            self._life,
            isinstance(self.own.source, Images),
            len(match.rows) if match else 0,
            columns.hexdigest(),
            match.session.hex() if match else "",
        )

    def _endpoint(self) -> Endpoint:
        store = Checkpoints(self.own.folder)
        return Endpoint(self.hello(), self._make, store, self._note, self._other)

    def _keep(self, match: PartyMatch) -> None:
        mark = TableFingerprint.of(source_columns(self.own.source), self.ids)
        self._alignment = PartyAlignment(match, self.own.matching.rule, mark)
        self._alignment.save(self.own.folder / ALIGNMENT)
        (self.own.folder / ENCODER).unlink(missing_ok=True)
        self.endpoint.hello = self.hello()
        rows, labelled = len(match.rows), match.labeled_ids
        self._note({"event": "matched", "rows": rows, "labeled_ids": labelled})

    def _other(self, message: Match | Release) -> Message:
        if isinstance(message, Match):
            return Matched(message.turn, self._responder.answer(message.body))
        if self._settings is None:
            raise WireError("Release: expected a run first")
        encoder = self._encoder(None)
        folder = take_release(
            message, self.own, encoder, self._settings, self.endpoint.worker, self._full_at
        )
        self._note({"event": "released", "bundle": str(folder.path)})
        return Done(message.turn, self.endpoint.applied)

    def _make(self, settings: RunSettings, training: Tensor) -> PartyRun:
        """Build nets and rows for a run; the encoder is fitted once, on the training rows."""
        if self._alignment is None:
            raise WireError("Begin: ids were not matched yet; run `xvfl align` first")
        encoder = self._encoder(training)
        at = torch.from_numpy(self._alignment.match.rows)
        rows = encode(encoder, take_rows(self.own.source, self._alignment.match.rows))
        table = to_party_table(encoder.layout, rows)
        layouts = {self.own.name: encoder.layout}
        loss = LossConfig(method=settings.method)  # type: ignore[arg-type]
        device = choose_device(self.own.device)
        net = build_parties(layouts, settings.net, loss, [settings.seed])[self.own.name]
        side = PartyWorker(
            self.own.name,
            net.to(device),
            table.to(device),
            [settings.seed],
            settings.reconstruction,
        )
        own = table.observed[training]
        self._full_at = settings.full_threshold or choose_full_threshold(
            own if len(own) else table.observed
        )
        self._settings = settings
        assert len(at) == len(table)
        return PartyRun(side, observation_levels(table.observed, self._full_at))

    def _encoder(self, training: Tensor | None) -> Encoder:
        folder = self.own.folder
        if folder.has(ENCODER):
            return encoder_from_dict(folder.read_json(ENCODER))
        assert training is not None and self._alignment is not None
        rows = np.sort(self._alignment.match.rows[training.numpy()])
        encoder = fit_encoder([take_rows(self.own.source, rows)], self.own.options, self.own.name)
        folder.write_json(ENCODER, encoder.to_dict())
        return encoder
