"""A party that predicts: evaluation mode only, within budgets, and no training request."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.federation.split_helpers import make_federation
from xvfl.federation.party_worker import PartyWorker
from xvfl.federation.prediction_endpoint import REFUSED, PredictionEndpoint, PredictionRows
from xvfl.federation.prediction_ledger import PredictionLedger, PredictionLimits
from xvfl.primitives.rows import observation_levels
from xvfl.wire import codec
from xvfl.wire.messages import (
    Backward,
    Begin,
    Complete,
    Completed,
    Embed,
    EmbedRows,
    ErrorReply,
    Flush,
    Gradient,
    Hello,
    Instruction,
    Match,
    Matched,
    Message,
    OpenPrediction,
    PredictionOpened,
    RowEmbeddings,
)

HANDLES = torch.tensor([1, -1, 0], dtype=torch.int32)
NO_TENSOR = torch.zeros(1, 1)


class Party:
    """An endpoint with the rows of a small federation's first party."""

    def __init__(self, folder: Path, limits: PredictionLimits | None = None) -> None:
        problem = make_federation(2, torch.float32)
        self.worker = PartyWorker("a", problem.parties[0], problem.tables[0], [0])
        self.events: list[dict[str, Any]] = []
        observed = problem.tables[0].observed
        ledger = PredictionLedger(limits or PredictionLimits(), len(observed), folder)
        rows = PredictionRows(
            "run",
            self.worker,
            np.arange(len(observed)),
            observation_levels(observed, 1.0),
            observed.float().mean(1),
            ledger,
        )
        self.n = 0
        self.endpoint = PredictionEndpoint(
            Hello(0, "p", False, len(observed), "", "s", "prediction"),
            lambda run: rows,
            {Match: lambda message: Matched(message.request_id, b"")},
            self.events.append,
        )

    def ask(self, message: Message) -> Message:
        self.n += 1
        request = replace(message, request_id=self.n)
        return codec.decode(self.endpoint.handle(codec.encode(request)))

    def open(self) -> "Party":
        assert isinstance(self.ask(OpenPrediction(0, "run")), PredictionOpened)
        return self

    def embed(self, handles: torch.Tensor = HANDLES) -> RowEmbeddings:
        reply = self.ask(EmbedRows(0, "caller", ("plain", "self"), handles))
        assert isinstance(reply, RowEmbeddings), reply
        return reply


def rejected(reply: Message) -> str:
    assert isinstance(reply, ErrorReply), reply
    return reply.text


@pytest.mark.parametrize(
    "message",
    [
        Begin(0, "run", 0, "{}", HANDLES),
        Embed(0, (), (), 0, True, ("plain",), HANDLES),
        Embed(0, (), (), 0, False, ("plain",), HANDLES),
        Embed(0, (Gradient(1, NO_TENSOR),), (Instruction(1, "step", 0.1),), 0, True, (), HANDLES),
        Backward(0, Gradient(2, NO_TENSOR)),
        Flush(0, (), (Instruction(1, "step", 0.1),), 3),
    ],
)
def test_training_is_refused_and_logged(message: Message, tmp_path: Path) -> None:
    party = Party(tmp_path).open()
    before = [each.clone() for each in party.worker.net.parameters()]
    party.embed()
    assert "this party only predicts" in rejected(party.ask(message))
    assert party.events[-1]["event"] == "request_rejected"
    assert all(a.equal(b) for a, b in zip(before, party.worker.net.parameters(), strict=True))
    assert isinstance(party.embed(), RowEmbeddings)


def test_embeddings_are_those_of_evaluation_mode(tmp_path: Path) -> None:
    party = Party(tmp_path).open()
    reply = party.embed()
    party.worker.net.eval()
    with torch.no_grad():
        expected = party.worker.embed(HANDLES.long(), ["plain", "self"], 0)
    assert reply.values.equal(expected[[0, 2]])
    assert not reply.values.requires_grad
    assert reply.row_status[1] == 0 and reply.observed[1] == 0
    assert not party.worker.net.training and reply.refusal == ""


def test_single_rows_are_allowed_and_completed_once(tmp_path: Path) -> None:
    party = Party(tmp_path).open()
    reply = party.embed(HANDLES[:1])
    cue, rows = torch.zeros(1, reply.values.shape[-1]), torch.zeros(1, dtype=torch.bool)
    assert isinstance(party.ask(Complete(0, reply.request_id, cue, rows)), Completed)
    assert "expected the id of the last EmbedRows, once" in rejected(
        party.ask(Complete(0, reply.request_id, cue, rows))
    )
    reply = party.embed(HANDLES[:1])
    assert "observed features stay" in rejected(
        party.ask(Complete(0, reply.request_id, cue, ~rows))
    )
    assert "last EmbedRows" in rejected(party.ask(Complete(0, reply.request_id - 1, cue, rows)))


def test_rows_above_a_budget_are_refused_one_by_one(tmp_path: Path) -> None:
    party = Party(tmp_path, PredictionLimits(max_per_row=1)).open()
    assert len(party.embed(HANDLES[:1]).values) == 1
    reply = party.embed()
    assert reply.row_status.tolist()[0] == REFUSED and len(reply.values) == 1
    assert reply.refusal.startswith("max_per_row (1) is used up until ")
    assert party.events[-1]["event"] == "prediction_refused" and party.events[-1]["rows"] == 1
    # A new process has the same counts.
    assert party.embed().values.shape[0] == 0
    assert Party(tmp_path, PredictionLimits(max_per_row=1)).open().embed().values.shape[0] == 0


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (EmbedRows(0, "c", ("masked",), HANDLES), "expected views among ('plain', 'self')"),
        (EmbedRows(0, "c", ("plain",), torch.tensor([99], dtype=torch.int32)), "handles"),
        (EmbedRows(0, "c", ("plain",), torch.tensor([1, 1], dtype=torch.int32)), "at most once"),
        (EmbedRows(0, "c" * 200, ("plain",), HANDLES), "at most 100 characters"),
        (EmbedRows(0, "c", ("plain",), torch.zeros(5000, dtype=torch.int32) - 1), "4096 rows"),
    ],
)
def test_invalid_requests_count_nothing(message: Message, text: str, tmp_path: Path) -> None:
    party = Party(tmp_path, PredictionLimits(max_per_row=1)).open()
    assert text in rejected(party.ask(message))
    assert party.embed().refusal == ""


def test_nothing_is_answered_before_the_table_is_open(tmp_path: Path) -> None:
    party = Party(tmp_path)
    reply = party.ask(EmbedRows(0, "c", ("plain",), HANDLES))
    assert "no prediction table is open" in rejected(reply)
    assert isinstance(party.ask(Match(0, b"")), Matched)
