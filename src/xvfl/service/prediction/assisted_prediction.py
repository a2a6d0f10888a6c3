"""A party that predicts its own rows, with a released head or with the help of its peers.

Rows without a gap are predicted here. For the others the coordinator asks this party and its peers
for embeddings, and returns a prediction; no embedding of a peer reaches this party.

Shapes: B rows of a batch, C outputs, p peers that answered.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from xvfl.data.sources import encode, source_ids
from xvfl.dataset.in_memory import to_party_table
from xvfl.errors import ModeError, RunError, WireError, XVFLError
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
from xvfl_serve.errors import RequestError
from xvfl_serve.http.micro_batches import Answers
from xvfl_serve.row_report import FULL_ROW, NO_GAP, NO_PEER, REFUSED_MODE

Call = Callable[[Message, float], Message]
"""Send a request to the coordinator and return its reply within some seconds."""
ASSIST_SHARE = 0.9
"""Share of the time of a request that the coordinator gets."""
COORDINATOR = "coordinator"
REFUSED = "it refused the request; the log of this party has the reason"
INVALID = "it sent an invalid reply"
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
    """

    mode = "assisted"

    def __init__(
        self,
        inputs: PartyInputs,
        handles: Callable[[], Tensor],
        call: Call,
        log: LogFunction,
    ) -> None:
        self._name, self._folder, self._source = inputs.name, inputs.folder, inputs.source
        self._handles, self._call, self._log = handles, call, log
        rule = inputs.matching.rule
        self._normalize = RULES[rule]
        texts = normalize_ids(source_ids(self._source), rule, "prediction.table")
        self._row, self.n_ids = {text: row for row, text in enumerate(texts)}, len(texts)
        self._opened: _Opened | None = None
        self._request_id = 0

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
        """Raise if there is no released head."""
        self._open()

    @torch.no_grad()
    def answer(self, rows: list[int], caller: str, deadline: float) -> Answers:
        """Predict rows with the peers that answer in time."""
        opened, at = self._open(), torch.tensor(rows)
        handles = self._handles()[at]
        asked = (opened.levels[at] != FULL) & (handles >= 0)
        width = opened.model.task.n_outputs
        reply = self._ask(handles[asked].int(), caller, deadline, width)
        helped, contributors, refused = (
            _spread(each, asked) for each in (reply.values, reply.contributors, reply.refused)
        )
        assisted = contributors.any(1, keepdim=True).numpy()
        values = np.where(assisted, helped.numpy(), self._predict_alone(opened, at))
        absent = dict(zip(reply.unreachable[::2], reply.unreachable[1::2], strict=True))
        return [
            self._answer(
                opened,
                row,
                values[i],
                [name for name, on in zip(reply.parties, contributors[i], strict=True) if on],
                [name for name, on in zip(reply.parties, refused[i], strict=True) if on],
                absent if asked[i] else None,
            )
            for i, row in enumerate(rows)
        ]

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

    def _predict_alone(self, opened: _Opened, at: Tensor) -> NDArray[np.float64]:
        """Predict rows without peers; rows without a gap are decided as in mode assisted. (B, C)"""
        own, model, n = opened.levels[at].unsqueeze(1), opened.model, len(at)
        batch = Rows(at.unsqueeze(1), own == FULL, own >= 1, torch.full((n,), -1), torch.ones(n))
        out = model.method.logits(opened.federation, batch, "local", 0)
        temperature = model.temperature(PredictRequest("assisted", self._name), batch)
        return model.task.values(out.double() / temperature)

    def _ask(self, handles: Tensor, caller: str, deadline: float, width: int) -> Assistance:
        """Ask the coordinator for help with rows; without a valid reply, no peer assists."""
        n, seconds = len(handles), deadline - time.monotonic()
        nobody = torch.zeros(n, 0, dtype=torch.bool)
        no_help = Assistance(0, torch.zeros(n, width, dtype=torch.float64), nobody, nobody, (), ())
        if not n:
            return no_help
        self._request_id = max(self._request_id + 1, time.time_ns() // 1_000_000)
        message = Assist(self._request_id, caller, ASSIST_SHARE * seconds, handles)
        try:
            reply = self._call(message, seconds)
            if not isinstance(reply, ErrorReply):
                return _check(reply, n, width)
            reason, details = REFUSED, reply.text
        except WireError as error:
            reason, details = INVALID, str(error)
        except XVFLError as error:
            reason, details = str(error), str(error)
        self._log({"event": "no_assistance", "reason": details})
        return replace(no_help, unreachable=(COORDINATOR, reason))

    def _answer(
        self,
        opened: _Opened,
        row: int,
        value: NDArray[np.float64] | None,
        peers: list[str],
        refused: list[str],
        unreachable: Mapping[str, str] | None,
    ) -> dict[str, Any]:
        """Build the answer of a row; `unreachable` is None if no peer was asked for it."""
        model, level = opened.model, int(opened.levels[row])
        share = 1 - float(opened.observed[row].float().mean())
        mode = "assisted" if level == FULL or peers else "local"
        notes = [f"{self._name}: {opened.notes[row]}"] if opened.notes[row] else []
        notes += [FULL_ROW if share else NO_GAP] if level == FULL else []
        notes += [f"{name}: {BUDGET_USED}" for name in refused]
        reasons = {"peers": NOT_LISTED} if unreachable is None else unreachable
        if not level and not peers:
            value = None if refused else np.asarray(model.prior, dtype=float)
            mode = REFUSED_MODE if refused else "prior"
            notes += prior_notes(model.task, bool(refused), reasons)
        elif mode == "local":
            notes += _local_notes(refused, reasons)
        completing = model.info(PredictRequest("assisted", self._name)).completing_modes
        return {
            **predicted(model.task, value),
            "mode": mode,
            "parties": ([self._name] if level else []) + peers,
            "unreachable": dict(unreachable or {}),
            "refused": refused,
            "completed": round(share, 6) if level != FULL and mode in completing else 0.0,
            "notes": notes,
        }


def _local_notes(refused: Sequence[str], absent: Mapping[str, str]) -> list[str]:
    """Tell why a row with a gap is predicted locally."""
    if not refused and not absent:
        return [NO_PEER]
    return [*absent_notes(absent), "no peer assisted: local prediction"]


def _check(reply: Message, n: int, width: int) -> Assistance:
    """Validate a reply for n rows."""
    if not isinstance(reply, Assistance) or len(reply.unreachable) % 2:
        raise WireError("the coordinator sent an invalid reply to Assist")
    check_tensor("values", reply.values, (n, width), torch.float64)
    for name in ("contributors", "refused"):
        check_tensor(name, getattr(reply, name), (n, len(reply.parties)), torch.bool)
    return reply


def _spread(values: Tensor, asked: Tensor) -> Tensor:
    """Place the values of the rows that were asked for among those of the batch."""
    spread = values.new_zeros(len(asked), *values.shape[1:])
    spread[asked] = values
    return spread
