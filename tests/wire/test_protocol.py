"""The two sides of a connection agree on a version of the protocol, or say which side to update."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from typing import Any

import grpc
import pytest

from tests.recorded.old_party import CHALLENGE
from tests.wire.transport_helpers import run_client, run_server, tls_files, wait_until
from xvfl.errors import PartyError, WireError
from xvfl.version import VERSION
from xvfl.wire import codec, protocol
from xvfl.wire.client import PartyClient, call_coordinator
from xvfl.wire.messages import KINDS, Challenge, ErrorReply, Hello, Match, Matched, Numbered, Proof
from xvfl.wire.protocol import BASE, NEWEST, ProtocolError, Side
from xvfl.wire.tls import METHOD, PATH, SERVICE

HELLO = Hello(0, "instance_id", False, 3, "columns", "session")
OLD_REFUSAL = (
    "frame: expected protocol version 3, got 4; run the same version of xvfl on both sides"
)
"""The words with which a coordinator of 0.3.0 rejects a newer party."""
UPDATE_04 = "pip install --upgrade 'xvfl[federated]>=0.4'"


@contextmanager
def talk(folder: Path, port: int, *frames: bytes) -> Iterator[Any]:
    """Send frames on a stream that stays open; yield the replies."""
    credentials, done = tls_files(folder, "p0").client_credentials(), Event()

    def send() -> Iterator[bytes]:
        yield from frames
        done.wait()

    with grpc.secure_channel(f"localhost:{port}", credentials) as channel:
        try:
            yield channel.stream_stream(PATH)(send(), timeout=120)
        finally:
            done.set()


@contextmanager
def old_coordinator(folder: Path, reply: Any) -> Iterator[int]:
    """Run a server that replies to the first frame of a stream; yield its port."""
    private, public = ((folder / f"coordinator.{end}").read_bytes() for end in ("key", "crt"))
    authority = (folder / "ca.crt").read_bytes()
    credentials = grpc.ssl_server_credentials([(private, public)], authority, True)
    handlers = {METHOD: grpc.stream_stream_rpc_method_handler(reply)}
    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        port = server.add_secure_port("localhost:0", credentials)
        server.start()
        try:
            yield port
        finally:
            server.stop(0).wait()


def test_each_side_is_named_by_its_versions() -> None:
    assert protocol.agree(Side(BASE, NEWEST, "0.4")) == NEWEST
    assert protocol.agree(Side(BASE, NEWEST + 7, "9.9")) == NEWEST
    with pytest.raises(ProtocolError) as newer:
        protocol.agree(Side(NEWEST + 1, NEWEST + 2, "9.9"))
    assert f"protocol version {NEWEST} and start it again" in str(newer.value)
    assert "pip install --upgrade 'xvfl[federated]>=9.9'" in str(newer.value)
    with pytest.raises(ProtocolError) as older:
        protocol.agree(protocol.side_of_version(3))
    assert f"one side speaks 3 (xvfl before 0.4), the other {NEWEST}" in str(older.value)
    assert UPDATE_04 in str(older.value)


def test_a_party_of_03_is_rejected_with_the_command(authority: Path) -> None:
    events: list[Any] = []
    with run_server(authority, ["p0"], log_event=events.append) as server:
        with (
            talk(authority, server.port, CHALLENGE) as replies,
            pytest.raises(grpc.RpcError) as caught,
        ):
            next(replies)
        # The party of 0.3.0 logs and prints the details, and exits.
        assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        assert UPDATE_04 in caught.value.details()
        wait_until(lambda: events)
    (event,) = events
    assert event["event"] == "connection_rejected" and event["party"] == "p0"
    assert UPDATE_04 in event["reason"] and "xvfl before 0.4" in event["reason"]


def test_a_coordinator_of_03_is_named_with_the_command(authority: Path) -> None:
    def reject(frames: Any, context: Any) -> Any:
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, OLD_REFUSAL)

    with old_coordinator(authority, reject) as port:
        address, own = f"localhost:{port}", tls_files(authority, "p0")
        client = PartyClient(
            address, own.client_credentials, lambda: HELLO, lambda frame: frame, lambda: False
        )
        with pytest.raises(PartyError, match="xvfl before 0.4") as caught:
            client.run()
    assert UPDATE_04 in str(caught.value)
    # A party that stays tries again: the coordinator may be updated meanwhile.
    assert caught.value.fault == "refused"


def test_an_unknown_newer_release_with_a_common_version_is_accepted(authority: Path) -> None:
    events: list[Any] = []
    challenge = Challenge(0, bytes(32), side=Side(BASE, NEWEST + 5, "9.9.1"))
    with (
        run_server(authority, ["p0"], log_event=events.append) as server,
        talk(
            authority, server.port, codec.encode(challenge), codec.encode(HELLO, NEWEST)
        ) as replies,
    ):
        proof = codec.decode(next(replies))
        assert isinstance(proof, Proof)
        assert proof.side == Side(protocol.OLDEST, NEWEST, VERSION)
        wait_until(lambda: events)
    assert events[0]["event"] == "connected"
    assert (events[0]["protocol"], events[0]["release"]) == (NEWEST, "9.9.1")


def test_a_newer_release_without_a_common_version_is_rejected_at_both_sides(
    authority: Path,
) -> None:
    events: list[Any] = []
    challenge = Challenge(0, bytes(32), side=Side(NEWEST + 1, NEWEST + 5, "9.9.1"))
    with run_server(authority, ["p0"], log_event=events.append) as server:
        with (
            talk(authority, server.port, codec.encode(challenge)) as replies,
            pytest.raises(grpc.RpcError, match=r"xvfl\[federated\]>=9.9.1"),
        ):
            next(replies)
        own, address = tls_files(authority, "p0"), f"localhost:{server.port}"
        reply = call_coordinator(address, own, challenge, 60, lambda nonce, proof: None)
        assert isinstance(reply, ErrorReply)
    assert "9.9.1" in events[0]["reason"]

    def prove(frames: Any, context: Any) -> Any:
        next(frames)
        yield codec.encode(Proof(0, b"", b"", side=challenge.side))
        next(frames)

    with old_coordinator(authority, prove) as port:
        address = f"localhost:{port}"
        client = PartyClient(
            address, own.client_credentials, lambda: HELLO, lambda frame: frame, lambda: False
        )
        with pytest.raises(PartyError, match=r"xvfl\[federated\]>=9.9.1") as caught:
            client.run()
    assert caught.value.fault == "refused"


@dataclass(frozen=True)
class Extended(Numbered):
    """A message with a field that the next version adds."""

    text: bytes
    more: int = field(default=7, metadata={"since": NEWEST + 1})


def test_a_new_field_is_sent_from_its_version_on(monkeypatch: pytest.MonkeyPatch) -> None:
    number, message = max(KINDS) + 1, Extended(1, b"x", 9)
    monkeypatch.setitem(KINDS, number, Extended)
    monkeypatch.setitem(codec._NUMBERS, Extended, number)
    monkeypatch.setattr(protocol, "NEWEST", NEWEST + 1)
    assert codec.decode(codec.encode(message, NEWEST + 1)) == message
    assert codec.decode(codec.encode(message, NEWEST)) == replace(message, more=7)
    monkeypatch.setattr(protocol, "NEWEST", NEWEST)
    with pytest.raises(WireError, match="no common protocol version"):
        codec.decode(codec.encode(message, NEWEST + 1))


def test_both_sides_use_the_highest_common_version(
    authority: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sides of the next release speak its version; with one of this release, this one."""
    monkeypatch.setattr(protocol, "NEWEST", NEWEST + 1)
    versions: list[int] = []

    def answer(frame: bytes) -> bytes:
        versions.append(codec.frame_version(frame))
        message: Any = codec.decode(frame)
        return codec.encode(Matched(message.request_id, message.body), versions[-1])

    with run_server(authority, ["p0"]) as server:
        with run_client(authority, "p0", server.port, HELLO, answer):
            transport = server.transports["p0"]
            wait_until(transport.hello)
            reply = transport.request(Match(1, b"x")).result(60)
            assert isinstance(reply, Matched) and reply.body == b"x"
        wait_until(lambda: transport.connection is None)
        challenge = Challenge(0, bytes(32), side=Side(BASE, NEWEST, "0.4"))
        frames = codec.encode(challenge), codec.encode(HELLO)
        with talk(authority, server.port, *frames) as replies:
            next(replies)
            wait_until(lambda: transport.connection)
            transport.request(Match(2, b"x"))
            versions.append(codec.frame_version(next(replies)))
    assert versions == [NEWEST + 1, NEWEST]
