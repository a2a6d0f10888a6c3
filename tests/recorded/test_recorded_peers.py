"""Peers of 0.4, recorded, with this version: a change that they do not understand fails here.

After a change of messages, raise the version of the protocol as `xvfl.wire.protocol` says; do not
record again what a release has sent.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.recorded.record import MESSAGES, SESSION, layout
from tests.recorded.replay import serve_recorded_parties
from xvfl.wire import codec
from xvfl.wire.protocol import BASE


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


@pytest.mark.slow
def test_recorded_parties_upload_and_predict(tmp_path: Path, recorded: dict[str, Any]) -> None:
    serve_recorded_parties(tmp_path, recorded)
