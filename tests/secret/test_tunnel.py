"""Nodes accept each other's certificates alone, and pass nothing on before."""

import asyncio
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.processes import free_port
from xvfl.certs import create_authority
from xvfl_secret.settings import NodeSettings
from xvfl_secret.tunnel import Tunnel

NAMES = ("alpha", "beta", "gamma")
HELLO = b"hello"


class Echo:
    """Stands in for SPU: answers what it receives; `received` collects it."""

    def __init__(self, path: str) -> None:
        self.received = bytearray()
        self._path = path.removeprefix("unix:")

    async def start(self) -> asyncio.Server:
        return await asyncio.start_unix_server(self._serve, self._path)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1000):
            self.received += data
            writer.write(data)
        writer.close()


class Mesh:
    """Certificates of one authority, the tunnels of three nodes and what is behind them."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.certs = folder / "certs"
        self.authority = create_authority(self.certs)
        for name in (*NAMES, "delta"):
            self.authority.issue(name, ["localhost"])
        self.ports = [free_port() for _ in NAMES]
        self.tunnels, self.echoes = [], []
        for rank in range(3):
            sockets = Path(stack.enter_context(TemporaryDirectory(prefix="xs")))
            tunnel = stack.enter_context(Tunnel(self.settings(rank), sockets))
            echo = Echo(tunnel.socket(rank))
            server = asyncio.run_coroutine_threadsafe(echo.start(), tunnel._loop).result()
            tunnel._servers.append(server)
            self.tunnels.append(tunnel)
            self.echoes.append(echo)

    def settings(self, rank: int) -> NodeSettings:
        return NodeSettings(
            rank=rank,
            names=NAMES,
            addresses=tuple(f"localhost:{port}" for port in self.ports),
            pins=tuple(self.pin(name) for name in NAMES),
            listen=f"localhost:{self.ports[rank]}",
            ca_certificate=str(self.certs / "ca.crt"),
            certificate=str(self.certs / f"{NAMES[rank]}.crt"),
            private_key=str(self.certs / f"{NAMES[rank]}.key"),
            state_dir="",
        )

    def pin(self, name: str) -> str:
        pem = (self.certs / f"{name}.crt").read_text()
        return sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()

    def connect(self, name: str | None, rank: int) -> bytes:
        """Connect to a node with a certificate, send bytes, and return the answer."""
        context = ssl.create_default_context(cafile=self.certs / "ca.crt")
        if name is not None:
            context.load_cert_chain(self.certs / f"{name}.crt", self.certs / f"{name}.key")
        raw = socket.create_connection(("localhost", self.ports[rank]), timeout=60)
        try:
            with context.wrap_socket(raw, server_hostname="localhost") as connection:
                connection.sendall(HELLO)
                return connection.recv(100)
        except OSError:
            return b""


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[Mesh]:
    with ExitStack() as stack:
        yield Mesh(tmp_path, stack)


def through(tunnel: Tunnel, rank: int) -> bytes:
    """Connect to another node as SPU does, send bytes, and return the answer."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(60)
        connection.connect(tunnel.socket(rank).removeprefix("unix:"))
        try:
            connection.sendall(HELLO)
            return connection.recv(100)
        except OSError:
            return b""


def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(600):
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError("the condition does not hold after a minute")


def test_nodes_reach_each_other(mesh: Mesh) -> None:
    for rank, tunnel in enumerate(mesh.tunnels):
        for other in {0, 1, 2} - {rank}:
            assert through(tunnel, other) == HELLO
    assert [bytes(echo.received) for echo in mesh.echoes] == [2 * HELLO] * 3


@pytest.mark.parametrize("name", ["delta", "alpha", None])
def test_a_node_refuses_every_other_certificate_of_its_authority(
    mesh: Mesh, name: str | None
) -> None:
    assert mesh.connect("beta", 0) == HELLO
    received = bytes(mesh.echoes[0].received)
    assert mesh.connect(name, 0) == b""
    assert bytes(mesh.echoes[0].received) == received
    wait_until(lambda: mesh.tunnels[0].refused == 1)


def test_a_node_sends_nothing_to_another_certificate_at_the_address(
    mesh: Mesh, tmp_path: Path
) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(mesh.certs / "delta.crt", mesh.certs / "delta.key")
    stranger, received = mesh.tunnels[0], bytearray()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.extend(await reader.read(100))
        writer.close()

    async def listen() -> asyncio.Server:
        return await asyncio.start_server(serve, "localhost", port, ssl=context)

    port = free_port()
    server = asyncio.run_coroutine_threadsafe(listen(), stranger._loop).result()
    stranger._servers.append(server)
    mesh.ports[1] = port
    with TemporaryDirectory(prefix="xs") as sockets:
        mesh.ports[2] = free_port()
        settings = mesh.settings(2)
        with Tunnel(settings, Path(sockets)) as tunnel:
            assert through(tunnel, 1) == b""
            assert tunnel.refused == 1
    assert not received


def test_a_lost_connection_is_reported_with_the_name_of_the_node(mesh: Mesh) -> None:
    lost: list[str] = []
    mesh.tunnels[0].watch(lost.append)
    assert mesh.connect("gamma", 0) == HELLO
    wait_until(lambda: lost == ["gamma"])
