"""A party that predicts its own rows, with a released head or with the help of its peers.

Rows without a gap are predicted here. For the others the coordinator asks this party and its peers
for embeddings, and returns a prediction; no embedding of a peer reaches this party.

Shapes: B rows of a batch, p peers that answered.
"""

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from xvfl.data.sources import encode, source_ids
from xvfl.dataset.in_memory import to_party_table
from xvfl.errors import ModeError, PartyError, RunError, WireError, XVFLError
from xvfl.federation.fused import FusedFederation
from xvfl.federation.message_checks import check_tensor
from xvfl.matching.normalize import RULES, normalize_ids
from xvfl.model.model import Model
from xvfl.model.prediction import PredictRequest
from xvfl.model.run_dir import MANIFEST, RunDir
from xvfl.model.workflow import open_bundle
from xvfl.primitives.rows import FULL, Rows, observation_levels
from xvfl.service.log import LogFunction
from xvfl.service.party_inputs import PartyInputs
from xvfl.service.prediction.row_answers import (
    absent_notes,
    predicted,
    prior_answer,
    prior_notes,
)
from xvfl.wire.messages import Assist, Assistance, ErrorReply, Message
from xvfl_serve.errors import RequestError, UnavailableError
from xvfl_serve.http.micro_batches import Answers
from xvfl_serve.row_report import FULL_ROW, NO_GAP, NO_PEER, REFUSED_MODE

Call = Callable[[Message, float], Message]
"""Send a request to the coordinator and return its reply within some seconds."""
ASSIST_SHARE = 0.9
"""Share of the time of a request that the coordinator gets."""
PROBE_S, PROBE_TIMEOUT_S = 2.0, 2.0
"""Seconds for which the number of available peers is valid, and to wait for it."""
COORDINATOR = "coordinator"
REFUSED = "it refused the request; the log of this party has the reason"
INVALID = "it sent an invalid reply"
BUSY = "no time left after this party's other requests"
NOT_LISTED = "the row is not on the coordinator's list of ids"
BUDGET_USED = "a budget is used up for this row"


@dataclass(frozen=True)
class _Opened:
    """The released model with the party's rows."""

    model: Model
    version: float
    """Time of the release's manifest."""
    observed: Tensor
    """(n, raw) observed features."""
    levels: Tensor
    """(n,) observation levels."""
    notes: list[str]
    federation: FusedFederation


@dataclass(frozen=True)
class _PeerAssistance:
    """What the coordinator sent for the rows of a batch."""

    values: Tensor
    """(B, C) predictions by the party and its peers."""
    contributors: Tensor
    """(B, p)"""
    refused: Tensor
    """(B, p)"""
    parties: tuple[str, ...] = ()
    unreachable: Mapping[str, str] = field(default_factory=dict)
    """Peers, or the coordinator, and the reason."""


class AssistedPredictor:
    """Answers requests for the rows of a party's prediction table.

    Parameters
    ----------
    inputs
        The prediction table, and the state folder with the released head.
    handles
        Returns the handle of each row of the table, −1 where it is not matched. (n,)
    call
        Sends requests to the coordinator.
    log
        Receives log events.
    min_parties
        Minimum number of parties that must answer, including this one.
    """

    mode = "assisted"

    def __init__(
        self,
        inputs: PartyInputs,
        handles: Callable[[], Tensor],
        call: Call,
        log: LogFunction,
        min_parties: int = 1,
    ) -> None:
        self._name, self._folder, self._source = inputs.name, inputs.folder, inputs.source
        self._handles, self._call, self._log = handles, call, log
        rule = inputs.matching.rule
        self._normalize = RULES[rule]
        texts = normalize_ids(source_ids(self._source), rule, "prediction.table")
        self._row, self.n_ids = {text: row for row, text in enumerate(texts)}, len(texts)
        self._opened: _Opened | None = None
        self._min_parties, self._n_peers, self._probed = min_parties, 0, -math.inf
        self._request_id, self._calling, self._probing = 0, threading.Lock(), threading.Lock()

    def find_row(self, each: str) -> int:
        """Return the row of an id; reject an id that is not in the prediction table."""
        self._open()
        row = self._row.get(self._normalize(each), -1)
        if row < 0:
            text = f"ids: {each[:100]!r} is not in the table that this party opened for prediction"
            raise RequestError(text, "ids", status=404)
        return row

    def prior(self, note: str) -> dict[str, Any]:
        """Answer a row that the party does not hold."""
        model = self._open().model
        return prior_answer(model.task, model.prior, note)

    def check_ready(self) -> None:
        """Raise if there is no released head, or if fewer than `min_parties` are available."""
        self._open()
        if self._min_parties == 1:
            return
        # Anybody may ask this: all wait for one probe, which is valid for them all.
        if self._probing.acquire(timeout=PROBE_TIMEOUT_S):
            try:
                if time.monotonic() > self._probed + PROBE_S:
                    self._probe()
            finally:
                self._probing.release()
        self._check_parties(1 + self._n_peers, "available")

    def _probe(self) -> None:
        """Ask the coordinator for the number of available peers."""
        nothing, deadline = torch.zeros(0, dtype=torch.int32), time.monotonic() + PROBE_TIMEOUT_S
        try:
            self._n_peers = len(self._ask(nothing, "", deadline).parties)
        except _NotAssistedError as error:
            # While a prediction is in progress, the last number holds.
            if not isinstance(error, _BusyError):
                self._n_peers = 0
        self._probed = time.monotonic()

    def _check_parties(self, count: int, what: str) -> None:
        if count < self._min_parties:
            raise UnavailableError(
                f"parties: {count} {what}, expected at least {self._min_parties}; try again later"
            )

    @torch.no_grad()
    def answer(self, rows: list[int], caller: str, deadline: float) -> Answers:
        """Predict rows with the peers that answer in time."""
        opened, at = self._open(), torch.tensor(rows)
        incomplete = (opened.levels[at] != FULL) & (self._handles()[at] >= 0)
        assistance = self._request_assistance(opened, at, incomplete, caller, deadline)
        if bool(incomplete.any()):
            self._check_parties(1 + len(assistance.parties), "answered")
        own = opened.levels[at].unsqueeze(1)
        batch = Rows(
            at.unsqueeze(1), own == FULL, own >= 1, torch.full((len(at),), -1), torch.ones(len(at))
        )
        model = opened.model
        out = model.method.logits(opened.federation, batch, "local", 0)
        request = PredictRequest("local", self._name)
        local = model.task.values(out.double() / model.temperature(request, batch))
        assisted = assistance.contributors.any(1).unsqueeze(1).numpy()
        values = np.where(assisted, assistance.values.numpy(), local)
        return self._answers(opened, at, batch, values, assistance, incomplete)

    def _open(self) -> _Opened:
        """Load the released model; reject the request if there is none (any more)."""
        try:
            bundle = open_bundle(self._folder)
            if bundle is None:
                raise ModeError("no released head")
            version = (bundle / MANIFEST).stat().st_mtime
            if self._opened is None or self._opened.version != version:
                self._opened = self._load(bundle, version)
        except (ModeError, RunError, OSError) as error:
            raise RequestError(
                "mode: no head is released to this party, or it was revoked, so it cannot predict; "
                "ask the coordinator for a release (`xvfl release`)",
                "mode",
                status=409,
            ) from error
        return self._opened

    def _load(self, bundle: RunDir, version: float) -> _Opened:
        model = Model.load(bundle)
        if "assisted" not in model.method.modes:
            raise ModeError("the method does not predict in mode assisted")
        encoded = encode(model.encoders[self._name], self._source)
        table = to_party_table(model.encoders[self._name].layout, encoded)
        levels = observation_levels(table.observed, model.full_threshold[self._name])
        federation = model.federation({self._name: table})
        federation.train(False)
        model.method.heads.eval()
        return _Opened(model, version, table.observed, levels, encoded.notes, federation)

    def _request_assistance(
        self, opened: _Opened, at: Tensor, incomplete: Tensor, caller: str, deadline: float
    ) -> _PeerAssistance:
        """Ask the coordinator for the peers of incomplete rows; without a reply, none assists."""
        width = opened.model.task.n_outputs
        nobody = _PeerAssistance(
            torch.zeros(len(at), width, dtype=torch.float64),
            torch.zeros(len(at), 0, dtype=torch.bool),
            torch.zeros(len(at), 0, dtype=torch.bool),
        )
        if not bool(incomplete.any()):
            return nobody
        handles = self._handles()[at][incomplete].int()
        try:
            reply = self._ask(handles, caller, deadline)
            return _spread(reply, incomplete, width)
        except _NotAssistedError as error:
            return replace(nobody, unreachable={COORDINATOR: str(error)})
        except WireError as error:
            self._log({"event": "no_assistance", "reason": str(error)})
            return replace(nobody, unreachable={COORDINATOR: INVALID})

    def _ask(self, handles: Tensor, caller: str, deadline: float) -> Assistance:
        """Send the coordinator one request at a time; raise `_NotAssistedError` without a reply."""
        if not self._calling.acquire(timeout=max(deadline - time.monotonic(), 0.0)):
            raise _BusyError(BUSY)
        try:
            seconds = deadline - time.monotonic()
            if seconds <= 0:
                raise _BusyError(BUSY)
            self._request_id = max(self._request_id + 1, time.time_ns() // 1_000_000)
            message = Assist(self._request_id, caller, ASSIST_SHARE * seconds, handles)
            try:
                reply = self._call(message, seconds)
            except XVFLError as error:
                self._log({"event": "no_assistance", "reason": str(error)})
                text = INVALID if isinstance(error, WireError) else str(error)
                raise _NotAssistedError(text) from error
        finally:
            self._calling.release()
        if isinstance(reply, Assistance):
            return reply
        refused = isinstance(reply, ErrorReply)
        text = reply.text if isinstance(reply, ErrorReply) else type(reply).__name__
        self._log({"event": "no_assistance", "reason": text})
        raise _NotAssistedError(REFUSED if refused else INVALID)

    def _answers(
        self,
        opened: _Opened,
        at: Tensor,
        batch: Rows,
        values: NDArray[np.float64],
        assistance: _PeerAssistance,
        asked: Tensor,
    ) -> Answers:
        model, answers = opened.model, []
        share = 1 - opened.observed[at].float().mean(1)
        info, names = model.info(PredictRequest("assisted", self._name)), assistance.parties
        for i, row in enumerate(at.tolist()):
            full, seen = bool(batch.full[i, 0]), bool(batch.seen[i, 0])
            peers = [n for n, on in zip(names, assistance.contributors[i], strict=True) if on]
            mode = "assisted" if full or peers else "local"
            notes = [f"{self._name}: {opened.notes[row]}"] if opened.notes[row] else []
            notes += [NO_GAP if not share[i] else FULL_ROW] if full else []
            refused = [n for n, on in zip(names, assistance.refused[i], strict=True) if on]
            absent = dict(assistance.unreachable) if asked[i] else {}
            reasons = absent if asked[i] else {"peers": NOT_LISTED}
            value: NDArray[np.float64] | None = values[i]
            notes += [f"{name}: {BUDGET_USED}" for name in refused]
            if not seen and not peers:
                value = None if refused else np.asarray(model.prior, dtype=float)
                mode = REFUSED_MODE if refused else "prior"
                notes += prior_notes(model.task, bool(refused), reasons)
            elif mode == "local":
                notes += _local_notes(refused, reasons)
            completes = not full and mode in info.completing_modes
            answers.append(
                {
                    **predicted(model.task, value),
                    "mode": mode,
                    "parties": ([self._name] if seen else []) + peers,
                    "unreachable": absent,
                    "refused": refused,
                    "completed": round(float(share[i]), 6) if completes else 0.0,
                    "notes": notes,
                }
            )
        return answers


class _NotAssistedError(PartyError):
    """The coordinator did not assist; the text is for callers."""


class _BusyError(_NotAssistedError):
    """An earlier request to the coordinator took all the time."""


def _local_notes(refused: Sequence[str], absent: Mapping[str, str]) -> list[str]:
    """Tell why a row with a gap is predicted locally."""
    if not refused and not absent:
        return [NO_PEER]
    return [*absent_notes(absent), "no peer assisted: local prediction"]


def _spread(reply: Assistance, incomplete: Tensor, width: int) -> _PeerAssistance:
    """Validate a reply and place its rows among those of the batch."""
    n, count = int(incomplete.sum()), len(reply.parties)
    check_tensor("values", reply.values, (n, width), torch.float64)
    check_tensor("contributors", reply.contributors, (n, count), torch.bool)
    check_tensor("refused", reply.refused, (n, count), torch.bool)
    if len(reply.unreachable) % 2:
        raise WireError("the coordinator sent an invalid reply to Assist")

    def place(values: Tensor) -> Tensor:
        spread = values.new_zeros(len(incomplete), *values.shape[1:])
        spread[incomplete] = values
        return spread

    pairs = zip(reply.unreachable[::2], reply.unreachable[1::2], strict=True)
    return _PeerAssistance(
        place(reply.values),
        place(reply.contributors),
        place(reply.refused),
        reply.parties,
        dict(pairs),
    )
