"""A party that leaves in order: the coordinator waits for nothing."""

import threading
from pathlib import Path

import pytest

from tests.wire.test_clocks import HELLO
from tests.wire.transport_helpers import issue_certificates, run_client, run_server, wait_until
from xvfl.wire import client, codec
from xvfl.wire.messages import Match, Matched
from xvfl.wire.request_ids import next_request_id


def test_a_party_that_is_stopped_replies_to_the_open_request_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "DRAIN_S", 60.0)
    folder = issue_certificates(tmp_path / "certs", ["bank"])
    handling, go_on = threading.Event(), threading.Event()

    def handle(frame: bytes) -> bytes:
        handling.set()
        assert go_on.wait(60)
        _, number = codec.kind_and_request_id(frame)
        return codec.encode(Matched(number, b"answer"))

    with run_server(folder, ["bank"]) as server:
        transport = server.transports["bank"]
        with run_client(folder, "bank", server.port, HELLO, handle) as party:
            wait_until(transport.hello)
            reply = transport.request(Match(next_request_id(), b"question"))
            assert handling.wait(60)
            party.stop()
            # An earlier reply could be sent before the client stops.
            threading.Timer(0.5, go_on.set).start()
            found = reply.result(60)
        assert isinstance(found, Matched) and found.body == b"answer"
        wait_until(lambda: transport.hello() is None)
