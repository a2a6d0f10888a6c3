"""A coordinator that predicts: its list of ids, matched with the parties, and their answers."""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from xvfl.errors import ConfigError, RunError, WireError
from xvfl.federation.message_checks import check_handles
from xvfl.federation.party_pool import PartyPool
from xvfl.federation.predict_in_time import EMBED_SHARE, embed_in_time, predict_in_time
from xvfl.federation.remote_party import RemoteParty
from xvfl.matching.alignment import CoordinatorAlignment
from xvfl.matching.normalize import RULES, normalize_ids
from xvfl.methods.pooling import prediction_views
from xvfl.model.dashboard.state_folder import describe_coordinator
from xvfl.model.run_dir import RunDir
from xvfl.service.align import existing_alignment, match_parties
from xvfl.service.config import ALIGNMENT, CoordinatorConfig
from xvfl.service.prediction.prediction_config import MAX_ASSISTED_ROWS, MAX_DEADLINE_S
from xvfl.service.prediction.row_answers import answer_rows, prior_answer, to_json
from xvfl.service.prediction.stand_in import add_stand_ins, find_stand_ins
from xvfl.service.release_delivery import send_release
from xvfl.service.release_store import ReleaseStore
from xvfl.service.trained_heads import TrainedHeads
from xvfl.system.event_log import LogFunction
from xvfl.wire.messages import Assist, Assistance, Hello, Message, RowAnswer
from xvfl.wire.request_ids import lone_request_id
from xvfl.wire.texts import MAX_NAME
from xvfl.wire.transport import Transport
from xvfl_serve.errors import RequestError, UnavailableError
from xvfl_serve.http.micro_batches import Answers

MATCH_TIMEOUT_S = 60.0
"""Seconds to wait for a party that restarts during matching."""
COLUMNS = ("prediction ids",)
"""Stand for the columns in the fingerprint of the ids."""


class CoordinatorPredictor:
    """Matches the ids that may be predicted with the parties' tables, and answers requests.

    Parameters
    ----------
    config
        The configuration.
    model
        The coordinator's part of the trained model.
    ids
        The ids that may be predicted.
    folder
        Folder of the alignment.
    log
        Receives log events.
    """

    mode = "collaborative"

    def __init__(
        self,
        config: CoordinatorConfig,
        model: TrainedHeads,
        ids: Sequence[str],
        folder: RunDir,
        log: LogFunction,
    ) -> None:
        assert config.prediction is not None
        self.settings, self.config, self.model, self._log = config.prediction, config, model, log
        self._check_min_parties(model)
        self._ids, self.n_ids = list(ids), len(ids)
        rule = config.matching.rule
        self._normalize = RULES[rule]
        texts = normalize_ids(self._ids, rule, "prediction.ids")
        self._row = {text: row for row, text in enumerate(texts)}
        self._path = folder / ALIGNMENT
        self._set_alignment(existing_alignment(self._path, self._ids, COLUMNS, rule))
        self._matched_now: dict[str, str] = {}
        self._matching, self._exchange = threading.Lock(), threading.Lock()
        self._transports: Mapping[str, Transport] = {}
        self._releases = ReleaseStore(RunDir(config.state_dir), config.signing_key)
        self._offered: set[tuple[str, int, str]] = set()
        self._release_error = ""
        self.pool: PartyPool | None = None
        self._stand_ins = find_stand_ins(self.config, model, list(self._row))

    def _set_alignment(self, alignment: CoordinatorAlignment) -> None:
        handles = torch.full((len(self._ids), len(self.model.names)), -1)
        for i, name in enumerate(self.model.names):
            if name in alignment.matches:
                handles[:, i] = torch.from_numpy(alignment.matches[name].handles)
        self._alignment, self._handles = alignment, handles

    def connect(self, transports: Mapping[str, Transport]) -> PartyPool:
        """Open sessions with the parties behind these transports."""
        self._transports = transports
        parties, patience = self._remote(self.model), EMBED_SHARE * self.settings.deadline
        self.pool = PartyPool(parties, self.model.runs, self._prepare, self._log, patience)
        return self.pool

    def use_model(self, model: TrainedHeads) -> None:
        """Predict with another head from now on, also one of other parties."""
        self._check_min_parties(model)
        stand_ins = find_stand_ins(self.config, model, list(self._row))
        with self._matching, self._exchange:
            self.model, self._stand_ins = model, stand_ins
            self._set_alignment(self._alignment)
            if self.pool is not None:
                self.pool.use_parties(self._remote(model), model.runs)

    def _remote(self, model: TrainedHeads) -> list[RemoteParty]:
        return [RemoteParty(name, self._transports[name]) for name in model.names]

    def _check_min_parties(self, model: TrainedHeads) -> None:
        if self.settings.min_parties > len(model.names):
            raise ConfigError(
                f"prediction.min_parties: expected 1 to {len(model.names)}, the parties of the "
                f"run, got {self.settings.min_parties}"
            )

    def _prepare(self, name: str, hello: Hello) -> None:
        """Deliver the release that waits for a party; match ids if it has not done so."""
        if self.pool is not None and self._releases.pending([name]):
            party = RemoteParty(name, self._transports[name])
            send_release(self._releases, party, self._log)
        with self._matching:
            match = self._alignment.matches.get(name)
            known = match is not None and hello.session == match.session.hex()
            if known or self._matched_now.get(name) == hello.instance_id:
                return
            alignment = match_parties(
                {name: self._transports[name]},
                self._ids,
                COLUMNS,
                self.config.matching,
                self._path,
                self._log,
                MATCH_TIMEOUT_S,
                end=False,
            )
            self._matched_now[name] = hello.instance_id
            self._set_alignment(alignment)

    def offer_releases(self, training: Mapping[str, Transport] = MappingProxyType({})) -> None:
        """Deliver releases that were signed meanwhile to connected parties; log what fails.

        They go over the connection for training, if the party has one, so that predictions go on.
        """
        try:
            for name in self._releases.pending(self.model.names):
                idle = training[name].hello() if name in training else None
                hello = idle or self._transports[name].hello()
                if self.pool is None or hello is None:
                    continue
                # A party that rejects it gets it again when a session is opened with it.
                release = name, self._releases.records()[name].number, hello.instance_id
                if release not in self._offered:
                    self._offered.add(release)
                    if idle is None:
                        self.pool.reopen(name, "it receives a release")
                    else:
                        party = RemoteParty(name, training[name])
                        send_release(self._releases, party, self._log, lone_request_id())
            self._release_error = ""
        except Exception as error:
            # Predictions go on; an error that stays is logged once.
            if (text := str(error) or repr(error)) != self._release_error:
                self._release_error = text
                self._log({"event": "releases_not_offered", "reason": text})

    def find_row(self, each: str) -> int:
        """Return the row of an id; reject an id that cannot be predicted."""
        row = self._row.get(self._normalize(each), -1)
        if row < 0:
            text = f"ids: {each[:100]!r} is not in the list of ids that may be predicted"
            raise RequestError(text, "ids", status=404)
        if bool((self._handles[row] < 0).all()):
            text = f"ids: no party holds {each[:100]!r} in the table that it opened for prediction"
            if unmatched := [n for n in self.model.names if n not in self._alignment.matches]:
                text += f"; not matched yet: {', '.join(unmatched)}"
            raise RequestError(text, "ids", status=404)
        return row

    def prior(self, note: str) -> dict[str, Any]:
        """Answer a row that no party holds."""
        model = self.model
        return {**prior_answer(model.task, model.prior, note), "model": model.named}

    def check_ready(self) -> None:
        """Raise `UnavailableError` if fewer than `min_parties` are available."""
        parties = self.pool.parties if self.pool else []
        usable = {place for place, each in self._stand_ins.items() if each.usable}
        count = sum(each.available or i in usable for i, each in enumerate(parties))
        self._check_parties(count, "available")

    def _check_parties(self, count: int, what: str) -> None:
        least = self.settings.min_parties
        if count < least:
            raise UnavailableError(
                f"parties: {count} {what}, expected at least {least}; try again later"
            )

    def answer(self, rows: list[int], caller: str, deadline: float) -> Answers:
        """Predict rows in mode collaborative with the parties that answer in time."""
        model, values, answers, unreachable = self._predict(torch.tensor(rows), caller, deadline)
        self._check_parties(len(model.names) - len(unreachable), "answered")
        return [
            {**to_json(model.task, *each, unreachable), "model": model.named}
            for each in zip(values, answers, strict=True)
        ]

    @torch.no_grad()
    def _predict(
        self, rows: Tensor, caller: str, deadline: float, party: str = ""
    ) -> tuple[TrainedHeads, NDArray[np.float64], list[RowAnswer], dict[str, str]]:
        """Predict rows with the parties that answer in time, or assist a party.

        Stored uploads stand in for parties in mode collaborative only. Returns the model, values
        (N, C), answers (N,), and the parties that did not take part, with the reason.
        """
        assert self.pool is not None
        pool, stood_in = self.pool, dict[str, Tensor]()
        with self._exchange:
            model, handles, parties = self.model, self._handles[rows], pool.parties
            views = prediction_views(model.method)
            assisted = model.names.index(party) if party else None
            batch = embed_in_time(pool, handles, caller, views, model.widths, deadline)
            if assisted is None:
                batch, stood_in = add_stand_ins(batch, rows, self._stand_ins)
            out, batch, in_time = predict_in_time(
                pool, model.method, batch, model.net.members, deadline, assisted
            )
        if assisted is not None and assisted not in batch.places:
            raise WireError("Assist: this party did not embed its rows in time")
        n_features = [parties[i].n_features for i in batch.places]
        away = {i: (p.name, p.absence) for i, p in enumerate(parties) if i not in batch.places}
        unreachable = dict(away.values())
        # A party that has not matched its ids yet may hold any row.
        unmatched = set(model.names) - set(self._alignment.matches)
        absent = [
            dict(each for i, each in away.items() if row[i] >= 0 or each[0] in unmatched)
            for row in handles.tolist()
        ]
        values, answers = answer_rows(model, out, batch, n_features, in_time, absent, party)
        for note, held in stood_in.items():
            for i in held.nonzero().flatten().tolist():
                answers[i] = replace(answers[i], notes=(*answers[i].notes, note))
        return model, values, answers, unreachable

    def assist(self, name: str, message: Message) -> Message:
        """Answer a party that asks for the help of its peers with its own rows."""
        if not isinstance(message, Assist) or not 0 < message.seconds <= MAX_DEADLINE_S:
            raise WireError(f"expected Assist within {MAX_DEADLINE_S:g} s")
        model = self.model
        if "assisted" not in model.method.modes:
            raise WireError("Assist: the method of this run does not predict in mode assisted")
        self._check_release(name)
        own, handles = self._handles[:, model.names.index(name)], message.handles
        check_handles(handles, int((own >= 0).sum()))
        distinct = len(handles) == len(set(handles.tolist())) and bool((handles >= 0).all())
        if not distinct or len(handles) > MAX_ASSISTED_ROWS:
            raise WireError(
                f"Assist: expected up to {MAX_ASSISTED_ROWS} rows of the party, each at most once, "
                f"got {len(handles)}"
            )
        deadline = time.monotonic() + min(message.seconds, self.settings.deadline)
        held = (own >= 0).nonzero().flatten()
        rows = held[own[held].argsort()][handles.long()]
        # The name of the certificate: a party could invent callers, each with a budget.
        caller = f"party:{name}"[:MAX_NAME]
        _, values, answers, unreachable = self._predict(rows, caller, deadline, name)
        texts = tuple(text for pair in unreachable.items() for text in pair)
        return Assistance(message.request_id, torch.from_numpy(values), tuple(answers), texts)

    def _check_release(self, name: str) -> None:
        """Reject a party without a released head of this run."""
        try:
            record = self._releases.records().get(name)
        except RunError as error:
            self._log({"event": "assistance_refused", "party": name, "reason": str(error)})
            raise WireError("Assist: the coordinator cannot read its releases") from error
        if record is None or record.revoked or record.run != self.model.run:
            raise WireError(
                "Assist: no head of this run is released to this party, or it was revoked; ask the "
                "coordinator for a release"
            )

    def status(self) -> dict[str, Any]:
        """Return the status; numbers become metrics."""
        parties = self.pool.parties if self.pool else []
        problem = ""
        try:
            self.check_ready()
        except UnavailableError as error:
            problem = str(error)
        return {
            "healthy": not problem,
            "problem": problem,
            "side": "coordinator",
            **describe_coordinator(Path(self.config.state_dir), self.model.names),
            "state": "predicting",
            "predicting": True,
            "run": self.model.run,
            "predicting_head": self.model.named.get("head", 0),
            "party_present": {each.name: int(each.available) for each in parties},
            "party_stands_in": {
                self.model.names[i]: int(each.usable) for i, each in self._stand_ins.items()
            },
            "party_reason": {each.name: each.diagnosis for each in parties if each.reason},
            "party_answer_seconds": {each.name: each.last_answer_s for each in parties},
        }
