"""A party answers its callers whatever the coordinator replies to a request for assistance."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from xvfl.errors import PartyError, WireError
from xvfl.model.run_dir import RunDir
from xvfl.service.config import MatchingConfig, PartyProcessConfig
from xvfl.service.party_inputs import PartyInputs
from xvfl.service.prediction.assisted_prediction import AssistedPredictor
from xvfl.wire.messages import Assistance, Done, ErrorReply, Message, RowAnswer
from xvfl.wire.tls import Tls

VALUES = torch.zeros(1, 2, dtype=torch.float64)
ROW = RowAnswer("assisted", ("bank", "shop"), (), 0.5, ())
REFUSED = "it refused the request; the log of this party has the reason"
INVALID = "it sent an invalid reply"


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (ErrorReply(1, "WireError", "no head is released"), REFUSED),
        (Done(1, 0), INVALID),
        (WireError("broken frame"), INVALID),
        (
            PartyError("no answer in time"),
            "no answer in time",
        ),
        (Assistance(1, VALUES[:, :1], (ROW,), ()), INVALID),
        (Assistance(1, VALUES * torch.nan, (ROW,), ()), INVALID),
        (Assistance(1, VALUES, (), ()), INVALID),
        (Assistance(1, VALUES, (ROW, ROW), ()), INVALID),
        (Assistance(1, VALUES, (ROW,), ("clinic",)), INVALID),
        (Assistance(1, VALUES, (replace(ROW, mode="invented"),), ()), INVALID),
        (Assistance(1, VALUES, (replace(ROW, completed=float("nan")),), ()), INVALID),
    ],
)
def test_without_a_valid_reply_no_peer_assists(
    reply: Message | Exception, reason: str, tmp_path: Path
) -> None:
    def call(message: Message, seconds: float) -> Message:
        if isinstance(reply, Exception):
            raise reply
        return reply

    events = list[Any]()
    frame, matching = pd.DataFrame({"age": [1.0]}, ["c1"]), MatchingConfig("exact")
    config = PartyProcessConfig("localhost:1", "", Tls("", "", ""), matching=matching)
    inputs = PartyInputs("bank", config, frame, RunDir(tmp_path))
    predictor = AssistedPredictor(inputs, lambda: torch.tensor([0]), call, events.append)
    found = predictor._ask([0], "caller", 1e9, width=2)
    assert found.rows == () and found.unreachable == ("coordinator", reason)
    assert [each["event"] for each in events] == ["no_assistance"]
