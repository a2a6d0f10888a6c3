"""Limits of connections: which one is closed for a new one, and after which time."""

import asyncio
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from serve_tests.server import wait_until
from tests.processes import ROOT, SOURCES
from xvfl.certs import create_authority
from xvfl_serve.http.connections import Connections, Limits, client_key, port_limits
from xvfl_serve.http.server import HttpServer, listen
from xvfl_serve.http.server_tls import server_tls

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
HALF = b"GET / HTTP/1.1\r\nHost: localhost\r\nX: "
PATIENT = Limits(4, 4, 600.0, 600, 600.0)
"""Few connections, and no time limit that matters."""


class Record:
    """A connection that notes whether it was closed."""

    def __init__(self, address: str) -> None:
        self.address, self.closed = address, False

    def abort(self) -> None:
        self.closed = True


def test_the_oldest_waiting_connection_of_an_address_is_closed_first() -> None:
    table = Connections[Record](Limits(10, 3))
    first, second, third, fourth = (Record("a") for _ in range(4))
    for each in (first, second, third):
        assert table.add(each)
    table.set_busy(first)
    assert table.add(fourth)
    assert [each.closed for each in (first, second, third)] == [False, True, False]
    table.set_waiting(first)
    assert table.add(Record("a")) and third.closed and not first.closed


def test_the_address_with_most_waiting_connections_is_closed_first() -> None:
    table = Connections[Record](Limits(4, 4))
    other, *many = (Record("b"), *(Record("a") for _ in range(3)))
    for each in (other, *many):
        assert table.add(each)
    assert table.add(Record("c"))
    assert many[0].closed and not other.closed


def test_a_new_connection_is_refused_if_all_are_busy() -> None:
    table = Connections[Record](Limits(2, 2))
    own = [Record("a"), Record("a")]
    for each in own:
        assert table.add(each)
        table.set_busy(each)
    assert not table.add(Record("a")) and not table.add(Record("b"))
    table.remove(own[0])
    table.remove(own[0])
    assert table.add(Record("b")) and table.all() and not own[1].closed


def test_addresses_are_counted_by_network() -> None:
    assert client_key("2001:db8::1") == client_key("2001:db8::ffff:1")
    assert client_key("2001:db8::1") != client_key("2001:db8:0:1::1")
    assert client_key("::ffff:10.0.0.1") == client_key("10.0.0.1") == "10.0.0.1"


def test_a_port_leaves_descriptors_to_the_process() -> None:
    code = "from xvfl_serve.http.connections import port_limits; print(port_limits().connections)"
    command = ["sh", "-c", 'ulimit -n 1024 && exec "$@"', "-", sys.executable, "-c", code]
    done = subprocess.run(command, env={"PYTHONPATH": SOURCES}, capture_output=True, check=True)
    assert int(done.stdout) == 256
    assert port_limits(10).per_address == 5


class App:
    """An application that answers `GET /` at once, and other paths when it is told to."""

    def __init__(self, body: bytes = b"ok") -> None:
        self.body, self.started, self.go = body, 0, threading.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        self.started += 1
        while scope["method"] == "POST" and (await receive()).get("more_body"):
            pass
        while scope["path"] != "/" and not self.go.is_set():
            await asyncio.sleep(0.01)
        headers = [(b"content-length", str(len(self.body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


class Client:
    """Opens connections to a server, and closes them at the end."""

    def __init__(self, port: int, stack: ExitStack, server: HttpServer | None = None) -> None:
        self.port, self._stack, self._server = port, stack, server

    def open(self, data: bytes = b"") -> socket.socket:
        """Open a connection whose kernel buffer holds little of an answer, and send some bytes."""
        connection = socket.socket()
        self._stack.callback(connection.close)
        connection.settimeout(60)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
        connection.connect(("127.0.0.1", self.port))
        connection.sendall(data)
        return connection

    def held(self) -> list[Any]:
        """Return the connections that the server holds."""
        assert self._server is not None
        return self._server._server._connections.all()

    def check_times(self) -> None:
        """Let the server close connections that have exceeded their time, as once a second."""
        assert self._server is not None
        check, loop = self._server._server.on_tick(0), self.held()[0].loop
        asyncio.run_coroutine_threadsafe(check, loop).result(60)

    def answered(self) -> bool:
        """Return whether an honest request is answered."""
        return self.open(GET).recv(100).startswith(b"HTTP/1.1 200")


class Clock:
    """A clock of the server that stands still until a test sets it."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Replace the clock by which the server closes connections."""
    replaced = Clock()
    monkeypatch.setattr("xvfl_serve.http.server.time", replaced)
    return replaced


def is_closed(connection: socket.socket) -> bool:
    """Wait until the server closes a connection."""
    try:
        while connection.recv(2**16):
            pass
    except ConnectionError:
        pass
    return True


@contextmanager
def serving(app: App, limits: Limits, tls: ssl.SSLContext | None = None) -> Iterator[Client]:
    """Serve an application in a thread, with kernel buffers that hold little of an answer."""
    threads, listener = threading.active_count(), listen("127.0.0.1", 0)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**16)
    server = HttpServer(app, listener, limits, tls).start("test")
    with ExitStack() as stack:
        yield Client(server.port, stack, server)
        app.go.set()
        server.close()
    assert threading.active_count() == threads


def test_waiting_connections_give_way_to_new_ones() -> None:
    with serving(App(), PATIENT) as client:
        silent, half = client.open(), client.open(HALF)
        idle = client.open(GET)
        assert idle.recv(100)
        body = client.open(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n1")
        for each in (silent, half, idle, body):
            assert client.answered() and is_closed(each)


def test_requests_being_answered_are_not_closed() -> None:
    app = App()
    with serving(app, PATIENT) as client:
        busy = [client.open(GET.replace(b"/ ", b"/later ")) for _ in range(3)]
        wait_until(lambda: app.started == 3)
        for _ in range(20):
            assert client.answered()
        fourth = client.open(GET.replace(b"/ ", b"/later "))
        wait_until(lambda: app.started == 24)
        assert is_closed(client.open(GET))
        app.go.set()
        for each in (*busy, fourth):
            assert each.recv(100).startswith(b"HTTP/1.1 200")


IN_TIME = Limits(10, 10, idle_seconds=600)
"""The time limits of a port, but for uvicorn's own one."""


@pytest.mark.parametrize("data", [b"", HALF, GET])
def test_headers_must_be_complete_in_time(data: bytes, clock: Clock) -> None:
    with serving(App(), IN_TIME) as client:
        connection = client.open(data)
        if data == GET:
            # The second request of a connection has the same limit.
            assert connection.recv(100)
            connection.sendall(HALF)
        wait_until(lambda: client.held() and not client.held()[0].busy)
        (held,) = client.held()
        for clock.now in (4.0, 8.0):
            connection.sendall(b"a")
            assert client.answered()
            client.check_times()
            assert held in client.held()
        clock.now = 11.0
        assert is_closed(connection)
        assert client.answered()


def test_answers_must_be_read_in_time(clock: Clock) -> None:
    with serving(App(bytes(2**24)), IN_TIME) as client:
        client.open(GET)
        assert_closed_in_time(client, clock)


def assert_closed_in_time(client: Client, clock: Clock) -> None:
    """Wait until answers are unread, then let time pass until the server closes the connection."""
    wait_until(lambda: client.held() and client.held()[0].unread)
    while client.held():
        clock.now += IN_TIME.answer_seconds + 1
        client.check_times()


PIPELINED = GET.replace(b"/ ", b"/later ") * 20
"""Requests whose answers nobody reads."""


def test_pipelined_answers_must_be_read_in_time(clock: Clock) -> None:
    app = App(bytes(2**24))
    app.go.set()
    with serving(app, IN_TIME) as client:
        client.open(PIPELINED)
        assert_closed_in_time(client, clock)


def test_connections_that_do_not_read_give_way() -> None:
    app = App(bytes(2**24))
    app.go.set()
    with serving(app, PATIENT) as client:
        for _ in range(4):
            client.open(PIPELINED)
        wait_until(lambda: app.started >= 4 and all(each.unread for each in client.held()))
        app.body = b"ok"
        for _ in range(8):
            assert client.answered()


@pytest.mark.parametrize("secure", [False, True])
def test_a_client_that_reads_slowly_gets_its_answer(
    secure: bool, tmp_path: Path, clock: Clock
) -> None:
    size, tls = 2**24, None
    create_authority(tmp_path).issue("coordinator", hosts=("localhost",))
    if secure:
        tls = server_tls(tmp_path / "coordinator.crt", tmp_path / "coordinator.key")
    context = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
    with serving(App(bytes(size)), IN_TIME, tls) as client:
        plain = client.open()
        connection = context.wrap_socket(plain, server_hostname="localhost") if secure else plain
        connection.sendall(GET)
        wait_until(lambda: client.held() and client.held()[0].unread)
        (held,), received = client.held(), 0
        for clock.now in (50.0, 100.0, 150.0, 200.0):
            client.check_times()
            while held.since < clock.now:
                part = connection.recv(2**18)
                assert part
                received += len(part)
        while received < size:
            part = connection.recv(2**20)
            assert part
            received += len(part)
        connection.close()


def test_unread_answers_share_a_limit() -> None:
    app, limits = App(bytes(2**24)), Limits(10, 10, 600.0, 600, 600.0, unread_bytes=3 * 2**24)
    with serving(app, limits) as client:
        opened = []
        for count in range(1, 4):
            opened.append(client.open(GET))
            wait_until(lambda count=count: sum(each.unread > 0 for each in client.held()) == count)
        oldest = min(client.held(), key=lambda each: each.since)
        opened.append(client.open(GET))
        wait_until(lambda: oldest not in client.held() and len(client.held()) == 3)
        assert client.answered()


def test_half_handshakes_give_way(tmp_path: Path) -> None:
    create_authority(tmp_path).issue("coordinator", hosts=("localhost",))
    files = tmp_path / "coordinator.crt", tmp_path / "coordinator.key"
    context = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
    with serving(App(), PATIENT, server_tls(*files)) as client:
        held = [client.open(bytes([22, 3, 1, 2, 0])) for _ in range(4)]
        honest = []
        for each in held:
            connection = context.wrap_socket(client.open(), server_hostname="localhost")
            honest.append(connection)
            connection.sendall(GET)
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
            assert is_closed(each)
        for connection in honest:
            connection.close()


@pytest.mark.parametrize("data", [HALF + bytes(2**20), b"\x00" * 100, b"GET / HTTP/9\r\n\r\n"])
def test_malformed_headers_are_refused(data: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    with serving(App(), PATIENT) as client:
        connection = client.open()
        try:
            connection.sendall(data)
            assert connection.recv(100).startswith(b"HTTP/1.1 400")
        except ConnectionError:
            pass
        assert client.answered()
    assert capfd.readouterr().err == ""


FEW_DESCRIPTORS = """
import socket, sys, time
from serve_tests.test_connections import App, GET
from xvfl_serve.http.connections import Limits
from xvfl_serve.http.server import HttpServer, listen
server = HttpServer(App(), listen("127.0.0.1", 0), Limits(1000, 1000, 600.0)).start("http")
print(server.port, flush=True)
sys.stdin.readline()
print(time.process_time(), flush=True)
"""


def test_a_server_without_free_descriptors_pauses_and_goes_on() -> None:
    process = subprocess.Popen(
        ["sh", "-c", 'ulimit -n 64 && exec "$@"', "-", sys.executable, "-c", FEW_DESCRIPTORS],
        env={"PYTHONPATH": f"{SOURCES}:{ROOT}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with ExitStack() as stack:
        client = Client(int(process.stdout.readline()), stack)
        for _ in range(200):
            client.open(HALF)
        for _ in range(10):
            assert client.answered()
        out, _ = process.communicate("end\n")
    assert float(out) > 0
