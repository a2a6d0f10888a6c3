"""Servers, clients and certificates for tests that run on every transport."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc

from xvfl.certs import PeerVerifier, create_authority
from xvfl.certs.loaded_tls import LoadedTls
from xvfl.certs.proof import proof_checker, prover
from xvfl.federation.endpoint import Endpoint
from xvfl.wire.client import PartyClient
from xvfl.wire.in_process import InProcessTransport
from xvfl.wire.messages import Hello
from xvfl.wire.server import CoordinatorServer
from xvfl.wire.tls import Tls
from xvfl.wire.transport import Transport

TRANSPORTS = ("memory", "grpc")
COORDINATOR = "coordinator"


def issue_certificates(folder: Path, names: Sequence[str]) -> Path:
    """Create an authority, and certificates for a coordinator on loopback and for parties."""
    if not folder.exists():
        authority = create_authority(folder)
        authority.issue(COORDINATOR, hosts=("localhost", "127.0.0.1"))
        for name in names:
            authority.issue(name)
    return folder


def tls_files(folder: Path, name: str) -> Tls:
    """Return the paths of a participant's TLS files."""
    return Tls(str(folder / "ca.crt"), str(folder / f"{name}.crt"), str(folder / f"{name}.key"))


@contextmanager
def run_server(
    folder: Path, names: Sequence[str], address: str = "localhost:0", **more: object
) -> Iterator[CoordinatorServer]:
    """Run a coordinator's server on loopback."""
    peers = PeerVerifier(folder / "ca.crt", folder / "ca.crl")
    own = LoadedTls(tls_files(folder, COORDINATOR))
    options: dict[str, Any] = {"identify": peers.check, "prove": prover(own), **more}
    server = CoordinatorServer(address, own.server_credentials(), names, **options)
    try:
        yield server
    finally:
        server.close()


def close(server: CoordinatorServer, name: str) -> None:
    """Close the connection of a party."""
    end = server.transports[name].end
    server._loop.call_soon_threadsafe(end, grpc.StatusCode.UNAVAILABLE, "closed by the test")


@contextmanager
def run_client(
    folder: Path,
    name: str,
    port: int,
    hello: Hello,
    handle: Callable[[bytes], bytes],
    **more: Any,
) -> Iterator[PartyClient]:
    """Run a party's client in a thread."""
    address, own = f"localhost:{port}", tls_files(folder, name)
    peers = PeerVerifier(folder / "ca.crt", folder / "ca.crl")
    client = PartyClient(
        address,
        own.client_credentials,
        lambda: hello,
        handle,
        is_over=lambda: False,
        reconnect_timeout=60,
        check_proof=proof_checker(own, address, peers),
        **more,
    )
    thread = threading.Thread(target=client.run, daemon=True)
    thread.start()
    try:
        yield client
    finally:
        client.stop()
        thread.join(60)
        assert not thread.is_alive()


def wait_until(holds: Callable[[], object], seconds: float = 120.0) -> None:
    """Wait for a condition."""
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, "the condition never held"
        time.sleep(0.002)


@contextmanager
def open_transports(
    kind: str, names: Sequence[str], ends: Sequence[Endpoint], folder: Path
) -> Iterator[list[Transport]]:
    """Connect to endpoints over a kind of transport."""
    if kind == "memory":
        yield [InProcessTransport(end.hello, end.handle) for end in ends]
        return
    issue_certificates(folder, names)
    with ExitStack() as stack:
        server = stack.enter_context(run_server(folder, names))
        for name, end in zip(names, ends, strict=True):
            stack.enter_context(run_client(folder, name, server.port, end.hello, end.handle))
        transports = [server.transports[name] for name in names]
        wait_until(lambda: all(line.hello() for line in transports))
        yield list(transports)
