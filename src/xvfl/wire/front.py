"""The coordinator's TCP port: limits connections, and forwards accepted ones to gRPC unread.

gRPC cannot limit connections per address, nor prefer those that have proved who they are. A
connection is pending until the party's `Hello` is accepted. With too many pending connections, the
oldest one of the address that has the most is closed; a pending connection is also closed after a
timeout. gRPC listens on a Unix socket in a private folder; TLS ends there.
"""

import asyncio
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from xvfl.errors import RunError

BUFFER_BYTES = 2**17
"""Bytes read at once; about twice as many are held for a side that does not read."""
BACKLOG = 128
NO_HANDSHAKE = (
    "the TLS handshake failed: the client does not use TLS, or has no valid certificate of the CA "
    "trusted here"
)


@dataclass(eq=False)
class _Client:
    """A connection of a client, and gRPC's name of it once its first bytes have arrived."""

    address: str
    writer: asyncio.StreamWriter
    name: str = ""
    timer: asyncio.TimerHandle | None = None
    """Closes the connection while it is pending; None afterwards."""
    opened: bool = False
    """Whether it has opened a stream: its TLS handshake was successful."""


class Front:
    """Accepts TCP connections and forwards their bytes to a Unix socket.

    All methods run in the server's event loop.
    """

    def __init__(
        self,
        folder: Path,
        max_pending: int,
        on_drop: Callable[[str, str], None],
        timeout: float,
    ) -> None:
        """Forward to the Unix socket `folder`/grpc.

        Parameters
        ----------
        folder
            A folder that only this user can read.
        max_pending
            Largest number of pending connections.
        on_drop
            Receives the address of every connection that is closed before its `Hello`, and why.
        timeout
            Seconds that a connection may be pending.
        """
        self.target = folder / "grpc"
        self._max_pending = max_pending
        self._on_drop, self._timeout = on_drop, timeout
        self._clients: list[_Client] = []
        self._n_names = 0
        self._servers: list[asyncio.Server] = []

    async def listen(self, address: str) -> int:
        """Listen on HOST:PORT, at every address of the host; return the port."""
        host, _, port = address.rpartition(":")
        loop, number = asyncio.get_running_loop(), int(port)
        found = await loop.getaddrinfo(
            None if host == "[::]" else host.strip("[]"),
            number,
            type=socket.SOCK_STREAM,
            flags=socket.AI_PASSIVE,
        )
        for family, *_, place in found:
            try:
                listening = socket.create_server(
                    (place[0], number), family=family, backlog=BACKLOG, dualstack_ipv6=False
                )
            except OSError as error:
                if self._servers and not int(port):
                    continue
                raise RunError(
                    f"{address}: cannot listen on this address; is the port in use? "
                    f"({error.strerror})"
                ) from error
            number = int(listening.getsockname()[1])
            self._servers.append(
                await asyncio.start_server(
                    self._accept, sock=listening, backlog=BACKLOG, limit=BUFFER_BYTES
                )
            )
        return number

    async def close(self) -> None:
        """Stop listening and close all connections."""
        for server in self._servers:
            server.close()
        for client in list(self._clients):
            client.writer.transport.abort()
        await asyncio.sleep(0)

    def set_pending(self, peer: str, pending: bool) -> None:
        """Count a connection as pending, or not any more; `peer` is gRPC's name of it."""
        for client in self._find(peer):
            client.opened = True
            self._set_pending(client, pending)

    def drop(self, peer: str) -> None:
        """Close a connection; do nothing if it is closed already."""
        for client in self._find(peer):
            client.writer.transport.abort()

    def address(self, peer: str) -> str | None:
        """Return the IP address of a connection."""
        return next((client.address for client in self._find(peer)), None)

    def _find(self, peer: str) -> list[_Client]:
        return [each for each in self._clients if each.name == peer]

    def _set_pending(self, client: _Client, pending: bool) -> None:
        if client.timer is not None and not pending:
            client.timer.cancel()
            client.timer = None
        elif client.timer is None and pending:
            loop = asyncio.get_running_loop()
            client.timer = loop.call_later(self._timeout, self._expire, client)

    def _expire(self, client: _Client) -> None:
        """Close a pending connection."""
        rule = f"no Hello within {self._timeout:g} s, or more than {self._max_pending} connections"
        self._on_drop(client.address, f"{rule} without it")
        self._set_pending(client, False)
        client.writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward a connection until one side closes it; with too many, close a pending one."""
        peer = writer.get_extra_info("peername")
        client = _Client(str(peer[0]) if peer else "?", writer)
        self._clients.append(client)
        self._set_pending(client, True)
        pending: dict[str, list[_Client]] = {}
        for each in self._clients:
            if each.timer is not None:
                pending.setdefault(each.address, []).append(each)
        if sum(map(len, pending.values())) > self._max_pending:
            self._expire(max(pending.values(), key=len)[0])
        try:
            # The socket to gRPC is opened when the client sends its first byte.
            if first := await reader.read(BUFFER_BYTES):
                await self._forward(client, first, reader)
        except ConnectionError:
            pass
        except OSError as error:
            message = "a connection was closed because it could not be forwarded"
            context = {"message": message, "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
        finally:
            await _close(writer)
            self._set_pending(client, False)
            self._clients.remove(client)
            if client.name.startswith("unix:"):
                Path(client.name.removeprefix("unix:")).unlink(missing_ok=True)

    async def _forward(self, client: _Client, first: bytes, reader: asyncio.StreamReader) -> None:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.setblocking(False)
            client.name = self._bind(connection)
            await asyncio.get_running_loop().sock_connect(connection, str(self.target))
            from_grpc, to_grpc = await asyncio.open_unix_connection(
                sock=connection, limit=BUFFER_BYTES
            )
            to_grpc.write(first)
            copies = [
                asyncio.create_task(_copy(reader, to_grpc)),
                asyncio.create_task(_copy(from_grpc, client.writer)),
            ]
            done, _ = await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
            if copies[1] in done and not client.opened:
                self._on_drop(client.address, NO_HANDSHAKE)
            for copy in copies:
                copy.cancel()
            await _close(to_grpc)
            await asyncio.gather(*copies, return_exceptions=True)

    def _bind(self, connection: socket.socket) -> str:
        """Give the socket to gRPC a name that identifies the connection; return gRPC's form."""
        if sys.platform == "linux":
            # A name chosen by the kernel, outside the file system: works with a full disk, too.
            connection.bind("")
            return f"unix-abstract:{connection.getsockname()[1:].decode()}"
        self._n_names += 1
        path = self.target.with_name(str(self._n_names))
        connection.bind(str(path))
        return f"unix:{path}"


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(BUFFER_BYTES):
        writer.write(data)
        await writer.drain()


async def _close(writer: asyncio.StreamWriter) -> None:
    """Close a connection after the bytes in its buffer are sent."""
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
