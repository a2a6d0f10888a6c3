"""What every transport does, and what gRPC does besides: broken lines, strangers, refusals."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch

from tests.federation.split_helpers import make_endpoints, make_federation, settings_json
from tests.wire.proxy import proxy
from tests.wire.transport_helpers import (
    TRANSPORTS,
    close,
    issue_certificates,
    open_transports,
    run_client,
    run_server,
    tls_files,
    wait_until,
)
from xvfl.certs import create_authority
from xvfl.certs.tls_diagnosis import diagnose_tls
from xvfl.errors import PartyError, RunError, WireError
from xvfl.federation.endpoint import Endpoint
from xvfl.wire import codec
from xvfl.wire.client import PartyClient
from xvfl.wire.messages import Begin, Done, Embed, ErrorReply, Hello, Match, Matched, Message, Ready
from xvfl.wire.server import CoordinatorServer, GrpcTransport
from xvfl.wire.tls import PATH
from xvfl.wire.transport import Transport

NONE = torch.zeros(0, dtype=torch.int32)
HELLO = Hello(0, "instance_id", False, 3, "columns", "session")
BEGIN = Begin(1, "run", 0, settings_json(), NONE)


def echo(frame: bytes) -> bytes:
    """Answer a match with its own body."""
    message: Any = codec.decode(frame)
    return codec.encode(Matched(message.request_id, message.body))


@pytest.fixture(params=TRANSPORTS)
def line(request: pytest.FixtureRequest, authority: Path) -> Iterator[tuple[Transport, Endpoint]]:
    """One party behind each transport."""
    end = make_endpoints(make_federation(2))[0]
    with open_transports(request.param, ["p0"], [end], authority) as found:
        yield found[0], end


def ask(line: Transport, message: Message) -> Message:
    return line.request(message).result(120)


def test_a_question_gets_its_answer(line: tuple[Transport, Endpoint]) -> None:
    transport, end = line
    assert transport.hello() == end.hello
    ready = ask(transport, BEGIN)
    assert isinstance(ready, Ready) and ready.request_id == 1
    sent, received = transport.traffic()
    assert sent == len(codec.encode(BEGIN)) and received == len(codec.encode(ready))


def test_a_refusal_is_an_answer(line: tuple[Transport, Endpoint]) -> None:
    transport, _ = line
    refused = ask(transport, Embed(5, (), (), 0, True, ("plain",), NONE))
    assert isinstance(refused, ErrorReply) and "Begin first" in refused.text
    assert isinstance(ask(transport, BEGIN), Ready)


def test_asked_again_it_gives_the_same_answer(line: tuple[Transport, Endpoint]) -> None:
    transport, end = line
    ask(transport, BEGIN)
    rows = torch.arange(3, dtype=torch.int32)
    question = Embed(2, (), (), 0, True, ("plain", "masked", "self"), rows)
    first, again = (codec.encode(ask(transport, question)) for _ in range(2))
    assert first == again and end.n_rejected == 0


def test_a_message_beyond_grpcs_own_limit(authority: Path) -> None:
    body = bytes(9 * 2**20)
    with (
        run_server(authority, ["p0"]) as listener,
        run_client(authority, "p0", listener.port, HELLO, echo),
    ):
        found = listener.transports["p0"]
        wait_until(found.hello)
        reply = ask(found, Match(1, body))
        assert isinstance(reply, Matched) and reply.body == body


def test_a_closed_server_leaves_no_task_behind(authority: Path) -> None:
    """A task that is pending when its loop closes prints a traceback as the process ends."""
    for _ in range(3):
        with (
            run_server(authority, ["p0"]) as listener,
            run_client(authority, "p0", listener.port, HELLO, echo),
        ):
            wait_until(listener.transports["p0"].hello)
            listener.close()
            assert not asyncio.all_tasks(listener._loop)


def test_a_cut_line_comes_back_and_nothing_is_done_twice(authority: Path) -> None:
    done: list[int] = []

    def slow(frame: bytes) -> bytes:
        done.append(codec.decode(frame).request_id)
        time.sleep(0.3)
        return echo(frame)

    with (
        run_server(authority, ["p0"]) as listener,
        proxy(listener.port) as between,
        run_client(authority, "p0", between.port, HELLO, cached(slow)),
    ):
        found = listener.transports["p0"]
        wait_until(found.hello)
        for request_id in range(1, 4):
            answer = found.request(Match(request_id, b"x"))
            wait_until(lambda request_id=request_id: request_id in done)
            assert between.drop_connections() == 1
            assert isinstance(answer.result(120), Matched)
    assert done == [1, 2, 3]


def cached(handle: Any) -> Any:
    """Keep the last answer, as an endpoint does."""
    last: dict[bytes, bytes] = {}
    lock = threading.Lock()

    def answer(frame: bytes) -> bytes:
        with lock:
            if frame not in last:
                last[frame] = handle(frame)
            return last[frame]

    return answer


def test_a_party_that_started_afresh_does_not_answer_what_was_asked_before(authority: Path) -> None:
    go = threading.Event()

    def hangs(frame: bytes) -> bytes:
        go.wait(120)
        return echo(frame)

    other = Hello(0, "another instance_id", False, 3, "columns", "session")
    with (
        run_server(authority, ["p0"]) as listener,
        proxy(listener.port) as between,
        run_client(authority, "p0", between.port, HELLO, hangs),
    ):
        found = listener.transports["p0"]
        wait_until(found.hello)
        answer = found.request(Match(1, b""))
        wait_until(lambda: found.traffic()[0])
        between.refuse = True
        between.drop_connections()
        with run_client(authority, "p0", listener.port, other, echo):
            assert isinstance(answer.exception(120), PartyError)
            wait_until(found.hello)
            assert found.hello() == other
            assert isinstance(ask(found, Match(2, b"")), Matched)
        go.set()


def refused(
    folder: Path,
    name: str,
    listener: CoordinatorServer,
    hello: Hello = HELLO,
    own: Path | None = None,
) -> str:
    """Dial in, expect to be turned away, and give the line that this side says."""
    address = f"localhost:{listener.port}"
    never = lambda: False  # noqa: E731
    files = tls_files(own or folder, name)
    dialler = PartyClient(
        address,
        files.client_credentials,
        lambda: hello,
        echo,
        never,
        reconnect_timeout=120,
        diagnose=partial(diagnose_tls, address, files),
    )
    with pytest.raises((PartyError, Exception)) as caught:
        dialler.run()
    return str(caught.value)


def test_a_name_that_is_not_on_the_list(authority: Path) -> None:
    events: list[dict[str, Any]] = []
    with run_server(authority, ["p0"], log_event=events.append) as listener:
        said = refused(authority, "p1", listener)
    assert "does not accept this certificate's name" in said and "p0" not in said
    assert {e["party"] for e in events if e["event"] == "connection_rejected"} == {"?"}
    assert "p1" in next(e["reason"] for e in events if e["event"] == "connection_rejected")


def test_a_second_party_of_the_same_name(authority: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xvfl.wire.client.DUPLICATE_TIMEOUT_S", 0.5)
    events: list[dict[str, Any]] = []
    with (
        run_server(authority, ["p0"], log_event=events.append) as listener,
        run_client(authority, "p0", listener.port, HELLO, echo),
    ):
        found = listener.transports["p0"]
        wait_until(found.hello)
        second = Hello(0, "the second", False, 3, "columns", "session")
        said = refused(authority, "p0", listener, second)
        assert "another process of this party is already connected" in said
        assert found.hello() == HELLO
        assert isinstance(ask(found, Match(1, b"")), Matched)
    assert any(e["event"] == "connection_rejected" and e["party"] == "p0" for e in events)


def test_what_a_party_says_of_itself_may_be_refused(authority: Path) -> None:
    def welcome(name: str, hello: Hello) -> None:
        raise WireError(f"party {name!r}: its columns changed since it first came")

    with run_server(authority, ["p0"], check_hello=welcome) as listener:
        assert "its columns changed" in refused(authority, "p0", listener)


def test_a_stranger_authority_gets_nowhere(authority: Path, tmp_path: Path) -> None:
    stranger = issue_certificates(tmp_path / "other", ["p0"])
    events: list[dict[str, Any]] = []
    with run_server(authority, ["p0"], log_event=events.append) as listener:
        said = refused(authority, "p0", listener, own=stranger)
        assert "certificate is not issued by the CA trusted here" in said
        (stranger / "ca.crt").write_bytes((authority / "ca.crt").read_bytes())
        said = refused(authority, "p0", listener, own=stranger)
        assert "rejected this party's certificate: it is issued by another CA" in said
        assert listener.transports["p0"].hello() is None
    assert not [e for e in events if e["event"] == "connected"]


def test_expired_and_future_certificates(tmp_path: Path) -> None:
    made = create_authority(tmp_path / "ca", now=datetime.now(UTC) - timedelta(days=400))
    made.issue("coordinator", hosts=("localhost",))
    made.issue("p0", days=10, now=datetime.now(UTC) - timedelta(days=300))
    made.issue("p1", now=datetime.now(UTC) + timedelta(days=3))
    made.issue("p2")
    with run_server(tmp_path / "ca", ["p0", "p1", "p2"]) as listener:
        assert "certificate expired on" in refused(tmp_path / "ca", "p0", listener)
        said = refused(tmp_path / "ca", "p1", listener)
        assert "is not valid before" in said and "check this clock" in said
        made.revoke("p2")
        assert "is revoked" in refused(tmp_path / "ca", "p2", listener)


def test_plain_tcp_and_plain_http2_get_nowhere(authority: Path) -> None:
    with run_server(authority, ["p0"]) as listener:
        with socket.create_connection(("localhost", listener.port)) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            plain.settimeout(120)
            assert b"200" not in plain.recv(1000)
        with grpc.insecure_channel(f"localhost:{listener.port}") as channel:
            call = channel.stream_stream(PATH)(iter([codec.encode(HELLO)]), timeout=5)
            with pytest.raises(grpc.RpcError) as caught:
                next(call)
            assert caught.value.code() in (
                grpc.StatusCode.UNAVAILABLE,
                grpc.StatusCode.DEADLINE_EXCEEDED,
            )
        assert listener.transports["p0"].hello() is None


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (
            codec.encode(HELLO)[:2] + b"\x09\0" + codec.encode(HELLO)[4:],
            "no common protocol version",
        ),
        (codec.encode(Done(1, 1)), "expected Challenge first"),
        (b"nonsense", "or more, got 8"),
        (bytes(2**21), "larger than max|Received message larger"),
        (codec.encode(Match(1, bytes(2**17))), "expected at most 65536 bytes, got 131"),
    ],
)
def test_wrong_first_words(authority: Path, frame: bytes, said: str) -> None:
    with run_server(authority, ["p0"]) as listener:
        credentials = tls_files(authority, "p0").client_credentials()
        with grpc.secure_channel(f"localhost:{listener.port}", credentials) as channel:
            call = channel.stream_stream(PATH)(iter([frame]), timeout=120)
            with pytest.raises(grpc.RpcError, match=said):
                next(call)
        assert listener.transports["p0"].hello() is None


def test_a_wrong_answer_ends_the_line_and_is_logged(authority: Path) -> None:
    events: list[dict[str, Any]] = []
    with run_server(authority, ["p0"], log_event=events.append) as listener:
        found = listener.transports["p0"]
        said: list[str] = []

        def run() -> None:
            said.append(answer_with(authority, listener, b"XV nonsense that is no frame at all"))

        thread = threading.Thread(target=run)
        thread.start()
        wait_until(found.hello)
        found.request(Match(1, b""))
        thread.join(120)
        assert "rejected" in said[0] and "version" in said[0]
    assert any(e["event"] == "connection_rejected" and e["party"] == "p0" for e in events)


def answer_with(folder: Path, listener: CoordinatorServer, reply: bytes) -> str:
    """Be a party that answers with these bytes, and give the line it ends with."""
    never = lambda: False  # noqa: E731
    address = f"localhost:{listener.port}"
    dialler = PartyClient(
        address,
        tls_files(folder, "p0").client_credentials,
        lambda: HELLO,
        lambda frame: reply,
        never,
    )
    with pytest.raises(PartyError) as caught:
        dialler.run()
    return str(caught.value)


def test_a_closed_line_hangs_up_and_the_party_may_come_back(authority: Path) -> None:
    events: list[dict[str, Any]] = []
    count = lambda kind: sum(each["event"] == kind for each in events)  # noqa: E731
    with (
        run_server(authority, ["p0"], log_event=events.append) as listener,
        run_client(authority, "p0", listener.port, HELLO, echo) as dialler,
    ):
        found = listener.transports["p0"]
        for times in range(1, 4):
            wait_until(found.hello)
            assert isinstance(ask(found, Match(times, b"")), Matched)
            close(listener, "p0")
            wait_until(lambda times=times: count("disconnected") == times)
            wait_until(lambda times=times: count("connected") == times + 1)
        dialler.stop()
    assert count("connection_rejected") == 0


def test_an_answer_that_comes_too_late_frees_the_line(authority: Path) -> None:
    go = threading.Event()

    def late(frame: bytes) -> bytes:
        go.wait(120)
        return echo(frame)

    with (
        run_server(authority, ["p0"]) as listener,
        run_client(authority, "p0", listener.port, HELLO, late),
    ):
        found: GrpcTransport = listener.transports["p0"]
        wait_until(found.hello)
        answer = found.request(Match(1, b""))
        time.sleep(0.1)
        assert found.hello() is None and not answer.done()
        go.set()
        wait_until(found.hello)
        assert answer.done()


def test_a_port_in_use(authority: Path) -> None:
    with (
        run_server(authority, ["p0"]) as listener,
        pytest.raises(RunError, match="is the port in use"),
        run_server(authority, ["p0"], address=f"localhost:{listener.port}"),
    ):
        pass
