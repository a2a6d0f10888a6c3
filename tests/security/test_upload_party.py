"""A coordinator that sends requests of its choice to a party process that uploads, over TLS."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pytest
import torch

from tests.security.hostile_coordinator import ROWS, HostileCoordinator, attacked_process
from tests.upload.test_upload_run import FORBIDDEN
from xvfl.federation.upload.manifest import chunk_digest, parse_manifest
from xvfl.wire.limited_log import MAX_LINES
from xvfl.wire.messages import (
    AskChunk,
    AskUpload,
    Done,
    ErrorReply,
    HeldOut,
    Message,
    UploadChunk,
    UploadOffer,
)

pytestmark = pytest.mark.slow
ENCODER = "encoder = { epochs = 2, embedding_dim = 16, hidden_dim = 32 }\n"
"""By default, a configuration does not name interactive training."""
WAIT_S = 300.0


@pytest.fixture(scope="module")
def party(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostileCoordinator]:
    with attacked_process(tmp_path_factory.mktemp("hostile"), ENCODER) as attacker:
        yield attacker


def numbered(message: Message, request_id: int) -> Message:
    """Return a message with another request id."""
    return replace(message, request_id=request_id)


def refuse(party: HostileCoordinator, request: Callable[[int], Message], reason: str) -> None:
    """Require that a request is refused for this reason, and logged, unless there were many."""
    reply = party.send(request)
    assert isinstance(reply, ErrorReply) and reason in reply.text, reply
    rejections = party.rejections()
    assert len(rejections) >= MAX_LINES or rejections[-1] == reply.text


def test_it_uploads_one_version_and_does_nothing_else(party: HostileCoordinator) -> None:
    held_out = torch.arange(60, dtype=torch.int32)

    def attack() -> None:
        for message in FORBIDDEN:
            refuse(party, partial(numbered, message), "interactive")

    attack()
    assert isinstance(party.send(lambda n: HeldOut(n, held_out)), Done)
    refuse(party, lambda n: HeldOut(n, held_out + 1), "another list")
    until = time.monotonic() + WAIT_S
    while True:
        offer = party.send(AskUpload)
        assert isinstance(offer, UploadOffer) and not offer.problem
        if offer.version:
            break
        attack()
        assert time.monotonic() < until
        time.sleep(0.5)
    manifest = parse_manifest(offer.manifest)
    assert (offer.version, manifest.version, manifest.rows) == (1, 1, ROWS)
    for version in (2, 3):
        another = AskChunk(0, version, 0)
        refuse(party, partial(numbered, another), "its operator chooses the version")
    chunk = party.send(lambda n: AskChunk(n, 1, 0))
    assert isinstance(chunk, UploadChunk)
    found = chunk_digest((chunk.origin, chunk.values, chunk.row_status))
    assert found == manifest.chunks[0]
    events = [each["event"] for each in party.log()]
    assert events.count("encoder_training") == 1 and "encoder_failed" not in events
    # The width and the copies are the party's.
    assert chunk.values.shape == (ROWS, 1 + manifest.masked_copies, 16)
