"""Connections that a process lends to another one through a socket in its folder."""

import stat
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

import pytest

from tests.wire.transport_helpers import wait_until
from xvfl.errors import PartyError, RunError
from xvfl.relay import SOCKET, borrow_connections, lend_connections
from xvfl.wire.messages import AskUpload, Done, Hello, Message
from xvfl.wire.protocol import NEWEST
from xvfl.wire.request_ids import next_request_id

HELLO = Hello(0, "instance", False, 3, "", "")


class Connection:
    """A transport whose replies a test makes."""

    def __init__(self) -> None:
        self.asked: list[tuple[Message, Future[Message]]] = []
        self.connected = True

    def hello(self) -> Hello | None:
        return HELLO if self.connected else None

    def request(self, message: Message) -> Future[Message]:
        self.asked.append((message, Future()))
        return self.asked[-1][1]

    def traffic(self) -> tuple[int, int]:
        return 0, 0


class Listening:
    """A process that listens."""

    def __init__(self) -> None:
        self.transports, self.renewed = {"shop": Connection()}, list[str]()

    def accept_parties(self, names: Sequence[str]) -> None:
        for name in names:
            self.transports.setdefault(name, Connection())

    def reconnect(self, name: str) -> None:
        self.renewed.append(name)


@pytest.fixture
def deep(tmp_path: Path) -> Path:
    """Return a folder whose path is longer than that of a socket may be."""
    folder = tmp_path / ("long" * 30) / "state"
    folder.mkdir(parents=True)
    return folder


def test_requests_and_replies_pass(deep: Path) -> None:
    listening = Listening()
    with lend_connections(deep, listening):
        assert stat.S_IMODE((deep / SOCKET).stat().st_mode) == 0o600
        with borrow_connections(deep, ["shop", "bank"]) as lent:
            assert lent is not None and lent["shop"].hello() == HELLO
            shop = listening.transports["shop"]
            # A party that is new to the process that listens.
            assert lent["bank"].hello() == HELLO and set(listening.transports) == {"shop", "bank"}
            message = AskUpload(next_request_id())
            reply = lent["shop"].request(message)
            assert lent["shop"].hello() is None
            wait_until(lambda: shop.asked)
            assert shop.asked[0][0] == message
            shop.asked[0][1].set_result(Done(message.request_id, 0))
            assert reply.result(60) == Done(message.request_id, 0)
            failed = lent["shop"].request(AskUpload(next_request_id()))
            wait_until(lambda: len(shop.asked) == 2)
            shop.asked[1][1].set_exception(PartyError("it restarted", ("shop",)))
            with pytest.raises(PartyError, match="it restarted"):
                failed.result(60)
            shop.connected = False
            assert lent["shop"].hello() is None
            with pytest.raises(RunError, match="wait for its end"):
                borrow_connections(deep, ["shop"]).__enter__()
        wait_until(lambda: sorted(listening.renewed) == ["bank", "shop"])
    assert not (deep / SOCKET).exists()


def test_without_a_process_that_listens_there_are_none(deep: Path) -> None:
    with borrow_connections(deep, ["shop"]) as lent:
        assert lent is None
    # A process that was killed leaves its socket.
    (deep / SOCKET).touch()
    with borrow_connections(deep, ["shop"]) as lent:
        assert lent is None


def test_a_request_of_another_version_of_the_protocol_is_refused_with_the_command(
    deep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that listens was started before an update."""
    listening = Listening()
    with lend_connections(deep, listening), borrow_connections(deep, ["shop"]) as lent:
        assert lent is not None
        monkeypatch.setattr("xvfl.relay.NEWEST", NEWEST + 1)
        reply = lent["shop"].request(AskUpload(next_request_id()))
        with pytest.raises(PartyError, match="no common protocol version.*pip install"):
            reply.result(60)
    assert listening.transports["shop"].asked == []
