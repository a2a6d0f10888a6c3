"""A party that predicts its own rows, with a released head or with the help of its peers.

Rows without a gap are predicted here. For the others the coordinator asks this party and its peers
for embeddings, and returns a prediction; no embedding of a peer reaches this party.

Shapes: B rows of a batch, C outputs.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from xvfl.data.sources import encode, source_ids, take_rows
from xvfl.errors import ModeError, RunError, WireError, XVFLError
from xvfl.federation.message_checks import check_tensor
from xvfl.matching.normalize import RULES, normalize_ids
from xvfl.model.model import Model
from xvfl.model.prediction import Prediction
from xvfl.model.run_dir import MANIFEST
from xvfl.model.workflow import open_bundle
from xvfl.service.party_inputs import PartyInputs
from xvfl.service.prediction.row_answers import absence_notes, prior_answer, to_json
from xvfl.system.event_log import LogFunction
from xvfl.wire.messages import Assist, Assistance, ErrorReply, Message, RowAnswer
from xvfl.wire.request_ids import next_request_id
from xvfl_serve.errors import RequestError
from xvfl_serve.http.micro_batches import Answers
from xvfl_serve.row_report import REFUSED_MODE

Call = Callable[[Message, float], Message]
"""Send a request to the coordinator and return its reply within some seconds."""
ASSIST_SHARE = 0.9
"""Share of the time of a request that the coordinator gets."""
COORDINATOR = "coordinator"
REFUSED = "it refused the request; the log of this party has the reason"
INVALID = "it sent an invalid reply"
NOT_LISTED = "the row is not on the coordinator's list of ids"
NOT_SENT = "this party does not send the row: a budget is used up, or it was withdrawn"
MODES = ("assisted", "local", "prior", REFUSED_MODE)


@dataclass(frozen=True)
class _Opened:
    """The released model."""

    model: Model
    version: float
    """Time of the release's manifest."""
    notes: list[str]
    """(n,) remarks on unusual cells of the party's rows."""


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
        rule = inputs.config.matching.rule
        self._normalize = RULES[rule]
        texts = normalize_ids(source_ids(self._source), rule, "prediction.table")
        self._row, self.n_ids = {text: row for row, text in enumerate(texts)}, len(texts)
        self._opened: _Opened | None = None

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

    def answer(self, rows: list[int], caller: str, deadline: float) -> Answers:
        """Predict rows with a gap by the coordinator, the others with the released head."""
        opened, handles, name = self._open(), self._handles()[rows].tolist(), self._name
        task, source = opened.model.task, take_rows(self._source, np.asarray(rows))
        own = opened.model.predict({name: source}, "assisted", name)
        asked = [i for i, mode in enumerate(own.mode) if mode != "assisted" and handles[i] >= 0]
        reply = self._ask([handles[i] for i in asked], caller, deadline, task.n_outputs)
        unreachable = dict(zip(reply.unreachable[::2], reply.unreachable[1::2], strict=True))
        found = {
            i: (values, row)
            for i, values, row in zip(asked, reply.values.numpy(), reply.rows, strict=False)
            if name not in row.refused
        }
        failed = {"peers": NOT_SENT} if reply.rows else unreachable
        answers = []
        for i, row in enumerate(rows):
            remarks = [f"{name}: {opened.notes[row]}"] if opened.notes[row] else []
            if i in found:
                values, answer = found[i]
                answer = replace(answer, notes=(*remarks, *answer.notes))
                answers.append(to_json(task, values, answer, unreachable))
            else:
                absent = failed if handles[i] >= 0 else {"peers": NOT_LISTED}
                answers.append(self._answer_alone(own, i, remarks, absent))
        return answers

    def _answer_alone(
        self, own: Prediction, i: int, remarks: Sequence[str], absent: Mapping[str, str]
    ) -> dict[str, Any]:
        """Answer a row with the released head; `absent` says why a gap was not sent."""
        task, mode, no_gap = own.task, own.mode[i], own.mode[i] == "assisted"
        notes = [own.notes[i]] if no_gap else [*remarks, *absence_notes(task, mode, absent)]
        parties = (self._name,) if own.parties[i] else ()
        row = RowAnswer(mode, parties, (), round(float(own.completed[i]), 6), tuple(notes))
        return to_json(task, own.values[i], row, {} if no_gap else absent)

    def _open(self) -> _Opened:
        """Load the released model; reject the request if there is none (any more)."""
        try:
            bundle = open_bundle(self._folder)
            if bundle is None:
                raise ModeError("no released head")
            version = (bundle / MANIFEST).stat().st_mtime
            if self._opened is None or self._opened.version != version:
                model = Model.load(bundle)
                if "assisted" not in model.method.modes:
                    raise ModeError("the method does not predict in mode assisted")
                notes = encode(model.encoders[self._name], self._source).notes
                self._opened = _Opened(model, version, notes)
        except (ModeError, RunError, OSError) as error:
            raise RequestError(
                "mode: no head is released to this party, or it was revoked, so it cannot predict; "
                "ask the coordinator for a release (`xvfl release`)",
                "mode",
                status=409,
            ) from error
        return self._opened

    def _ask(self, handles: Sequence[int], caller: str, deadline: float, width: int) -> Assistance:
        """Ask the coordinator to predict rows; without a valid reply, it predicts none."""
        no_help, seconds = Assistance(0, torch.zeros(0), (), ()), deadline - time.monotonic()
        if not handles:
            return no_help
        rows = torch.tensor(handles, dtype=torch.int32)
        message = Assist(next_request_id(), caller, ASSIST_SHARE * seconds, rows)
        try:
            reply = self._call(message, seconds)
            if not isinstance(reply, ErrorReply):
                return _check(reply, len(handles), width)
            reason, details = REFUSED, reply.text
        except WireError as error:
            reason, details = INVALID, str(error)
        except XVFLError as error:
            reason, details = str(error), str(error)
        self._log({"event": "no_assistance", "reason": details})
        return replace(no_help, unreachable=(COORDINATOR, reason))


def _check(reply: Message, n: int, width: int) -> Assistance:
    """Validate a reply for n rows; its texts were restricted when it was decoded."""
    if not isinstance(reply, Assistance) or len(reply.unreachable) % 2 or len(reply.rows) != n:
        raise WireError(f"the coordinator sent an invalid reply to Assist for {n} rows")
    check_tensor("values", reply.values, (n, width), torch.float64)
    for each in reply.rows:
        if each.mode not in MODES or not 0 <= each.completed <= 1:
            raise WireError(f"Assistance: expected a mode among {MODES} and a completed share")
    return reply
