"""Limits on connections, chunks and replies."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.wire.test_transports import HELLO, echo
from tests.wire.transport_helpers import close, run_client, run_server, wait_until
from xvfl.errors import WireError
from xvfl.wire import codec
from xvfl.wire.front import NO_HANDSHAKE
from xvfl.wire.limited_log import MAX_LINES
from xvfl.wire.limits import CHUNK_BYTES, SMALL_BYTES, FrameAssembler, reply_limit, split_frame
from xvfl.wire.messages import (
    Backward,
    Begin,
    Complete,
    Embed,
    End,
    Flush,
    Gradient,
    Match,
    Matched,
    Release,
)

MAX = 2**28


def is_open(connection: socket.socket) -> bool:
    """Return whether the other side has not closed a connection."""
    connection.setblocking(False)
    try:
        return connection.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


@pytest.fixture
def sockets() -> Iterator[list[socket.socket]]:
    opened: list[socket.socket] = []
    yield opened
    for each in opened:
        each.close()


def test_a_flood_from_one_address_closes_its_own_connections_alone(
    authority: Path, sockets: list[socket.socket]
) -> None:
    events: list[dict[str, Any]] = []
    with (
        run_server(
            authority, ["p0"], "0.0.0.0:0", log_event=events.append, max_pending=8, hello_timeout=60
        ) as server,
        run_client(authority, "p0", server.port, HELLO, echo),
    ):
        wait_until(server.transports["p0"].hello)
        target = ("127.0.0.1", server.port)
        others = [socket.create_connection(target, source_address=("127.0.0.2", 0))]
        flood = [socket.create_connection(target) for _ in range(50)]
        sockets += others + flood
        wait_until(lambda: sum(map(is_open, flood)) == 7)
        assert all(map(is_open, others)) and all(map(is_open, flood[-7:]))
        # The party is connected from the address of the flood, and not pending.
        reply = server.transports["p0"].request(Match(1, b"")).result(60)
        assert isinstance(reply, Matched)
    dropped = [each for each in events if each["event"] == "connection_dropped"]
    assert len(dropped) == MAX_LINES
    assert all(each["address"] == "127.0.0.1" for each in dropped)
    assert events[-1] == {"event": "events_not_logged", "count": 43 - MAX_LINES}


@pytest.mark.parametrize("first", [b"", b"\x16\x03\x01\x02"], ids=["silent", "half a handshake"])
def test_a_connection_without_hello_is_closed_in_time(
    authority: Path, sockets: list[socket.socket], first: bytes
) -> None:
    events: list[dict[str, Any]] = []
    with run_server(authority, ["p0"], log_event=events.append, hello_timeout=0.3) as server:
        for _ in range(5):
            sockets.append(socket.create_connection(("localhost", server.port)))
            sockets[-1].sendall(first)
        wait_until(lambda: not any(map(is_open, sockets)))
        wait_until(lambda: len(events) == 5)
    assert {each["event"] for each in events} == {"connection_dropped"}


def test_a_failed_handshake_is_logged_with_its_address(
    authority: Path, sockets: list[socket.socket], capfd: pytest.CaptureFixture[str]
) -> None:
    events: list[dict[str, Any]] = []
    with run_server(authority, ["p0"], log_event=events.append) as server:
        for first in (b"GET / HTTP/1.1\r\n\r\n", b"\0 anything that is not TLS"):
            sockets.append(socket.create_connection(("localhost", server.port)))
            sockets[-1].sendall(first)
        context = ssl.create_default_context(cafile=str(authority / "ca.crt"))
        context.set_alpn_protocols(["h2"])
        with (
            socket.create_connection(("localhost", server.port), timeout=60) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as without_certificate,
            suppress(ssl.SSLError, ConnectionError),
        ):
            without_certificate.recv(1)
        wait_until(lambda: len(events) == 3)
    assert all(each["reason"] == NO_HANDSHAKE and each["address"] for each in events)
    assert "Handshake failed" not in capfd.readouterr().err


def test_a_party_that_opens_a_second_connection_loses_the_first(authority: Path) -> None:
    events: list[dict[str, Any]] = []
    with (
        run_server(authority, ["p0"], log_event=events.append) as server,
        run_client(authority, "p0", server.port, HELLO, echo),
    ):
        wait_until(server.transports["p0"].hello)
        first = server.transports["p0"].connection
        with run_client(authority, "p0", server.port, HELLO, echo):
            wait_until(lambda: server.transports["p0"].connection not in (None, first))
            assert first is not None
            wait_until(lambda: first.stream.done())


def test_frames_survive_their_chunks() -> None:
    for size in (0, 10, CHUNK_BYTES - 100, CHUNK_BYTES, 3 * CHUNK_BYTES + 7):
        frame = codec.encode(Match(4, bytes(size)))
        chunks, assembler = list(split_frame(frame)), FrameAssembler()
        assert max(map(len, chunks)) <= CHUNK_BYTES and b"".join(chunks) == frame
        results = [assembler.add(each, lambda request_id: MAX) for each in chunks]
        assert results[-1] == frame and not any(results[:-1]) and assembler.complete


def test_a_frame_is_rejected_by_its_header() -> None:
    frame = codec.encode(Match(4, bytes(3 * CHUNK_BYTES)))
    first, second, *_ = split_frame(frame)
    with pytest.raises(WireError, match=f"at most 100 bytes, got {len(frame)}"):
        FrameAssembler().add(first, lambda request_id: 100)
    for wrong, text in ((b"", "1 byte or more"), (bytes(len(frame)), "more than its header")):
        assembler = FrameAssembler()
        assert assembler.add(first, lambda request_id: MAX) is None
        assert assembler.add(second, lambda request_id: MAX) is None
        with pytest.raises(WireError, match=text):
            assembler.add(wrong, lambda request_id: MAX)


def test_replies_are_bounded_by_the_shapes_of_their_requests() -> None:
    limit = reply_limit(MAX, row_bytes=8 * 64, match_bytes=1000)
    handles, cue = torch.zeros(512, dtype=torch.int32), torch.zeros(512, 64)
    none = torch.zeros(0, dtype=torch.int32)
    embed = Embed(1, (), (), 0, True, ("plain", "masked"), handles)
    for request, needed in (
        (embed, 512 * (2 * 64 * 8 + 5)),
        (Complete(1, 1, cue, torch.zeros(512, dtype=torch.bool)), 512 * 64 * 4),
        (Backward(1, Gradient(1, cue)), 512 * 64 * 4),
        (Begin(1, "run", 0, "", none), HELLO.rows),
        (Match(1, b""), 1000),
        (Flush(1, (), (), -1), 0),
        (End(1, ""), 0),
        (Release(1, "", (), b""), 0),
    ):
        assert limit(request, HELLO) == needed + SMALL_BYTES, request
    assert reply_limit(MAX)(Match(1, b""), HELLO) == MAX
    assert reply_limit(MAX)(embed, HELLO) == MAX
    assert reply_limit(1000)(embed, HELLO) == 1000


def test_a_party_that_does_not_read_is_disconnected_when_the_coordinator_closes(
    authority: Path,
) -> None:
    """A reply of many megabytes that nobody reads must not delay a disconnection."""
    hold = threading.Event()

    def slow(frame: bytes) -> bytes:
        hold.wait(60)
        return echo(frame)

    with (
        run_server(authority, ["p0"]) as server,
        run_client(authority, "p0", server.port, HELLO, slow),
    ):
        transport = server.transports["p0"]
        wait_until(transport.hello)
        for request_id in range(1, 4):
            transport.request(Match(request_id, bytes(32 * 2**20)))
        connection = transport.connection
        close(server, "p0")
        wait_until(lambda: transport.connection is not connection)
        hold.set()


def test_a_party_that_reconnects_all_the_time_does_not_fill_the_log(authority: Path) -> None:
    events: list[dict[str, Any]] = []
    n_connections = 30
    with run_server(authority, ["p0"], log_event=events.append) as server:
        for _ in range(n_connections):
            with run_client(authority, "p0", server.port, HELLO, echo):
                wait_until(server.transports["p0"].hello)
            wait_until(lambda: server.transports["p0"].connection is None)
    for kind in ("connected", "disconnected"):
        assert [each["event"] for each in events].count(kind) == MAX_LINES
    not_logged = 2 * (n_connections - MAX_LINES)
    assert events[-1] == {"event": "events_not_logged", "count": not_logged}
