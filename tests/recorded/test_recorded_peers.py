"""Peers of 0.4, recorded, with this version: a change that they do not understand fails here.

After a change of messages, raise the version of the protocol as `xvfl.wire.protocol` says; do not
record again what a release has sent.
"""

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.processes import free_port
from tests.recorded.federation import PARTIES, new_ids, write_federation
from tests.recorded.record import MESSAGES, SESSION, STATE, is_ready, layout, predict
from tests.recorded.replay import RecordedParty
from tests.service.predicting_federation import Predicting
from tests.wire.transport_helpers import wait_until
from xvfl.wire import codec
from xvfl.wire.protocol import BASE


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(SESSION.read_text())
    return found


@contextmanager
def recorded_parties(
    folder: Path, port: int, recorded: dict[str, Any]
) -> Iterator[list[RecordedParty]]:
    """Connect all recorded parties, for training and for prediction."""
    connections = [
        RecordedParty(
            f"localhost:{port}",
            tuple(folder / "certs" / each for each in ("ca.crt", f"{name}.key", f"{name}.crt")),
            recorded["parties"][name],
            purpose,
        )
        for name in PARTIES
        for purpose in ("training", "prediction")
    ]
    try:
        yield connections
    finally:
        for each in connections:
            each.stop()


def test_the_messages_of_04_have_not_changed() -> None:
    """A coordinator of 0.4 and a party of 0.4 send and read these fields, in this order."""
    assert layout(BASE) == MESSAGES.read_text()


def test_recorded_frames_are_decoded_and_encoded_again(recorded: dict[str, Any]) -> None:
    for party in recorded["parties"].values():
        frames = [*party["sent"].values()]
        frames += [each for replies in party["replies"].values() for each in replies.values()]
        for frame in map(bytes.fromhex, frames):
            assert codec.encode(codec.decode(frame), BASE) == frame


@pytest.mark.slow
def test_recorded_parties_upload_and_predict(tmp_path: Path, recorded: dict[str, Any]) -> None:
    serve_recorded_parties(tmp_path, recorded)


def serve_recorded_parties(folder: Path, recorded: dict[str, Any]) -> None:
    """Let this version's coordinator train with parties of 0.4, and predict."""
    write_federation(folder, port := free_port(), address := free_port())
    for name in STATE:
        (folder / "main" / name).write_text(recorded["state"][name])
    with (
        Predicting(folder) as federation,
        recorded_parties(folder, port, recorded) as connections,
    ):
        federation.launch("coordinator")
        wait_until(lambda: is_ready(folder) or any(each.problems for each in connections), 600)
        assert [each.problems for each in connections] == [[]] * len(connections)
        for each in new_ids():
            (answer,) = predict(address, [each])
            assert answer["parties"] == [*PARTIES]
        assert all(each.answered for each in connections)
        federation.signal("coordinator", signal.SIGTERM)
        assert federation.running["coordinator"].wait() == 0
    assert [each.problems for each in connections] == [[]] * len(connections)
