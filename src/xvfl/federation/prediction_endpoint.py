"""A party's endpoint for prediction: evaluation mode, within budgets, no gradients, no training.

Shapes: B rows of a batch, H of them embedded, v views, M members, d embedding width of a member.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from xvfl.errors import WireError
from xvfl.federation.member_rows import complete_rows, embed_rows
from xvfl.federation.message_checks import check_completion, check_handles, check_views
from xvfl.federation.party_worker import PartyWorker
from xvfl.federation.prediction_ledger import PredictionLedger
from xvfl.federation.request_endpoint import Replies, RequestEndpoint
from xvfl.methods.base import View
from xvfl.wire.limited_log import LogEvent
from xvfl.wire.messages import (
    Complete,
    Completed,
    EmbedRows,
    Hello,
    OpenPrediction,
    PredictionOpened,
    RowEmbeddings,
)

REFUSED = 3
"""Row status of a row that a budget refuses."""
MAX_ROWS = 4096
"""Rows of one `EmbedRows`."""
VIEWS = ("plain", "self")
WITHDRAWN = "the party has withdrawn rows, or its upload"
ONLY_PREDICTS = "this party only predicts; to train, start `xvfl party` there without --serve"


@dataclass(frozen=True)
class PredictionRows:
    """A party's nets with the weights of a finished run, and the rows that it may predict."""

    run: str
    worker: PartyWorker
    rows: NDArray[np.int64]
    """(n,) row of the prediction table, by handle."""
    levels: Tensor
    """(n,) uint8 observation level, by handle."""
    observed: Tensor
    """(n,) float32 share of observed features, by handle."""
    ledger: PredictionLedger
    withdrawn: Callable[[], NDArray[np.bool_] | None] = lambda: None
    """Returns which rows of the prediction table were withdrawn; None if none was."""


class PredictionEndpoint(RequestEndpoint):
    """One party of one coordinator, after training.

    Parameters
    ----------
    hello
        What the party reports about itself when it connects.
    open_rows
        Loads nets and rows for the name of a run.
    replies
        Reply to requests that are not part of prediction.
    log_event
        Receives log events.
    """

    def __init__(
        self,
        hello: Hello,
        open_rows: Callable[[str], PredictionRows],
        replies: Replies,
        log_event: LogEvent,
    ) -> None:
        own: Replies = {
            EmbedRows: self._embed,
            Complete: self._complete,
            OpenPrediction: self._open,
        }
        super().__init__(hello, log_event, {**own, **replies}, ONLY_PREDICTS)
        # It draws no random numbers: it does not wait for a training in this process.
        self._turns = nullcontext()
        self._open_rows = open_rows
        self._opened: PredictionRows | None = None
        self._discard()

    def close_rows(self) -> None:
        """Forget the opened rows: their handles changed."""
        self._opened = None
        self._discard()

    def _discard(self) -> None:
        self._tensor_id, self._embeddings = -1, torch.zeros(0, 0)

    def _open(self, message: OpenPrediction) -> PredictionOpened:
        if self._opened is None or self._opened.run != message.run:
            self._discard()
            self._opened = self._open_rows(message.run)
            self._opened.worker.net.eval()
            rows = len(self._opened.rows)
            self._log_event({"event": "prediction_opened", "run": message.run, "rows": rows})
        return PredictionOpened(message.request_id, self._opened.worker.net.layout.raw)

    @torch.no_grad()
    def _embed(self, message: EmbedRows) -> RowEmbeddings:
        opened = self._require_opened()
        worker = opened.worker
        check_handles(message.handles, len(opened.rows))
        check_views(message.views, worker.net.completes)
        if not set(message.views) <= set(VIEWS) or len(message.views) > len(VIEWS):
            raise WireError(f"EmbedRows: expected views among {VIEWS}, got {message.views}")
        if len(message.handles) > MAX_ROWS:
            raise WireError(
                f"EmbedRows: expected up to {MAX_ROWS} rows, got {len(message.handles)}"
            )
        handles = message.handles.long()
        held = (handles >= 0).nonzero().flatten()
        if len(np.unique(handles[held].numpy())) < len(held):
            raise WireError("handles: expected each row at most once")
        allowed, refusal = _take(opened, opened.rows[handles[held].numpy()], message.caller)
        refused = held[~torch.from_numpy(allowed)]
        if refusal:
            event = {"event": "prediction_refused", "caller": message.caller}
            self._log_event({**event, "rows": len(refused), "reason": refusal})
        answered = handles.clone()
        answered[refused] = -1
        status, observed = _at(opened.levels, answered), _at(opened.observed, answered)
        status[refused] = REFUSED
        self._discard()
        output = embed_rows(worker, answered, cast(tuple[View, ...], message.views), 0)
        self._tensor_id, self._embeddings = message.request_id, output
        values = output[(answered >= 0).to(output.device)].cpu()
        return RowEmbeddings(message.request_id, values, status, observed, refusal)

    @torch.no_grad()
    def _complete(self, message: Complete) -> Completed:
        worker = self._require_opened().worker
        embeddings = self._embeddings
        if message.tensor_id != self._tensor_id:
            raise WireError("Complete: expected the id of the last EmbedRows, once")
        check_completion(message, worker.net.completes, len(embeddings), embeddings)
        if bool(message.replace_observed.any()):
            raise WireError("Complete: observed features stay in a prediction")
        self._discard()
        cue = message.cue.to(worker.table.device)
        completed = complete_rows(worker, cue, message.replace_observed)
        return Completed(message.request_id, completed.cpu())

    def _require_opened(self) -> PredictionRows:
        if self._opened is None:
            raise WireError("expected OpenPrediction first: no prediction table is open")
        return self._opened

    @property
    def usage(self) -> dict[str, object]:
        """What was used of the budgets."""
        return self._opened.ledger.usage() if self._opened else {}


def _take(
    opened: PredictionRows, rows: NDArray[np.int64], caller: str
) -> tuple[NDArray[np.bool_], str]:
    """Count a request for rows; return which may be embedded, and why the others may not."""
    withdrawn = opened.withdrawn()
    if withdrawn is None or not withdrawn[rows].any():
        return opened.ledger.take(rows, caller)
    allowed = ~withdrawn[rows]
    allowed[allowed], refusal = opened.ledger.take(rows[allowed], caller)
    return allowed, refusal or WITHDRAWN


def _at(values: Tensor, handles: Tensor) -> Tensor:
    """Select values by handle; 0 for handle −1."""
    return torch.cat([values, values.new_zeros(1)])[handles]
