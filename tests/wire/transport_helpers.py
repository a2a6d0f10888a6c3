"""The transports side by side: what every test of one runs on the other, too."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from xvfl.certs import Peers, make_authority
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
    """Make an authority, and certificates for a coordinator on loopback and for parties."""
    if not folder.exists():
        authority = make_authority(folder)
        authority.issue(COORDINATOR, hosts=("localhost", "127.0.0.1"))
        for name in names:
            authority.issue(name)
    return folder


def tls_files(folder: Path, name: str) -> Tls:
    """Name one side's files."""
    return Tls(str(folder / "ca.crt"), str(folder / f"{name}.crt"), str(folder / f"{name}.key"))


@contextmanager
def run_server(
    folder: Path, names: Sequence[str], address: str = "localhost:0", **more: object
) -> Iterator[CoordinatorServer]:
    """Listen on loopback."""
    peers = Peers(folder / "ca.crt", folder / "ca.crl")
    listener = CoordinatorServer(
        address, tls_files(folder, COORDINATOR), names, peers.check, **more
    )  # type: ignore[arg-type]
    try:
        yield listener
    finally:
        listener.close()


@contextmanager
def run_client(
    folder: Path, name: str, port: int, hello: Hello, handle: Callable[[bytes], bytes]
) -> Iterator[PartyClient]:
    """Dial in from a thread."""
    address, own = f"localhost:{port}", tls_files(folder, name)
    dialler = PartyClient(address, own, lambda: hello, handle, over=lambda: False, give_up_s=60)
    thread = threading.Thread(target=dialler.run, daemon=True)
    thread.start()
    try:
        yield dialler
    finally:
        dialler.stop()
        thread.join(60)
        assert not thread.is_alive()


def wait_until(holds: Callable[[], object], seconds: float = 120.0) -> None:
    """Wait for something to become true."""
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, "the condition never held"
        time.sleep(0.002)


@contextmanager
def open_transports(
    kind: str, names: Sequence[str], ends: Sequence[Endpoint], folder: Path
) -> Iterator[list[Transport]]:
    """Reach parties over a transport."""
    if kind == "memory":
        yield [InProcessTransport(end.hello, end.handle) for end in ends]
        return
    issue_certificates(folder, names)
    with ExitStack() as stack:
        listener = stack.enter_context(run_server(folder, names))
        for name, end in zip(names, ends, strict=True):
            stack.enter_context(run_client(folder, name, listener.port, end.hello, end.handle))
        found = [listener.lines[name] for name in names]
        wait_until(lambda: all(line.hello() for line in found))
        yield list(found)
