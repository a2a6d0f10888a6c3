"""Peers of 0.4, recorded, with this version: a change that they do not understand fails here.

After a change of messages, raise the version of the protocol as `xvfl.wire.protocol` says; do not
record again what a release has sent.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.processes import free_port
from tests.recorded.federation import write_federation
from tests.recorded.record import MESSAGES, SESSION, layout, write_alignments
from tests.recorded.replay import request_frame, serve_recorded_parties
from tests.wire.transport_helpers import wait_until
from xvfl.federation.prediction_ledger import PredictionLimits
from xvfl.model.run_dir import RunDir
from xvfl.service.config import load_party_config
from xvfl.service.party import open_party
from xvfl.service.party_inputs import PartyInputs
from xvfl.service.prediction.party_prediction import PartyPredictor
from xvfl.wire import codec
from xvfl.wire.protocol import BASE
from xvfl.wire.request_ids import next_request_id


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(SESSION.read_text())
    return found


def test_the_messages_of_04_have_not_changed() -> None:
    """A coordinator of 0.4 and a party of 0.4 send and read these fields, in this order."""
    assert layout(BASE) == MESSAGES.read_text()


def test_recorded_frames_are_decoded_and_encoded_again(recorded: dict[str, Any]) -> None:
    for party in recorded["parties"].values():
        frames = [*party["sent"].values()]
        frames += [each for replies in party["replies"].values() for each in replies.values()]
        for frame in map(bytes.fromhex, frames):
            assert codec.encode(codec.decode(frame), BASE) == frame


def test_a_party_replies_to_recorded_requests(tmp_path: Path, recorded: dict[str, Any]) -> None:
    """This version's party uploads to a coordinator of 0.4, and predicts for it."""
    write_federation(tmp_path, free_port(), free_port())
    write_alignments(tmp_path, recorded, "bank")
    bank = recorded["parties"]["bank"]
    config, folder = load_party_config(tmp_path / "bank.toml"), RunDir(tmp_path / "bank")
    party = open_party(PartyInputs.load("bank", config, folder), lambda event: None)
    assert party.endpoint.hello == replace(
        codec.decode(bytes.fromhex(bank["sent"]["Hello training"])),
        instance_id=party.endpoint.hello.instance_id,
    )
    held_out, ask, chunk, *_ = bank["replies"]["training"].items()
    same_kind(party, held_out)
    wait_until(lambda: same_kind(party, ask).version == 1)
    same_kind(party, chunk)
    party.close()

    inputs = PartyInputs.load("bank", config, folder, str(tmp_path / "bank-new.csv"))
    predictor = PartyPredictor(inputs, PredictionLimits(), lambda event: None)
    for exchange in bank["replies"]["prediction"].items():
        same_kind(predictor, exchange)


def same_kind(party: Any, exchange: tuple[str, str]) -> Any:
    """Check that a party replies to a request with the recorded kind of reply, and shapes."""
    request, expected = exchange
    reply = party.endpoint.handle(request_frame(request, next_request_id()))
    found, recorded = codec.decode(reply), codec.decode(bytes.fromhex(expected))
    assert type(found) is type(recorded), found
    for name, _ in codec.message_fields(type(found), BASE):
        if isinstance(value := getattr(found, name), torch.Tensor):
            assert value.shape == getattr(recorded, name).shape
    assert codec.frame_version(reply) == BASE
    return found


@pytest.mark.slow
def test_recorded_parties_upload_and_predict(tmp_path: Path, recorded: dict[str, Any]) -> None:
    serve_recorded_parties(tmp_path, recorded)
