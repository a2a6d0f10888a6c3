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
from pathlib import Path
from typing import Any

from xvfl.errors import RunError
from xvfl.wire.limits import HELLO_TIMEOUT_S, MAX_PENDING

BUFFER_BYTES = 2**18
"""Bytes held for a side that does not read."""
BACKLOG = 128


class Front:
    """Accepts TCP connections and forwards their bytes to a Unix socket.

    All methods run in the server's event loop.
    """

    def __init__(
        self,
        folder: Path,
        max_pending: int = MAX_PENDING,
        on_drop: Callable[[str], None] = lambda address: None,
        timeout: float = HELLO_TIMEOUT_S,
    ) -> None:
        """Forward to the Unix socket `folder`/grpc.

        Parameters
        ----------
        folder
            A folder that only this user can read.
        max_pending
            Largest number of pending connections.
        on_drop
            Receives the address of every pending connection that is closed.
        timeout
            Seconds that a connection may be pending.
        """
        self.target = folder / "grpc"
        self._max_pending = max_pending
        self._on_drop, self.timeout = on_drop, timeout
        self.rule = f"no Hello within {timeout:g} s, or more than {max_pending} such connections"
        """Why pending connections are closed."""
        self._clients: dict[_Client, None] = {}
        self._names: dict[str, _Client] = {}
        self._n_names = 0
        self._servers: list[asyncio.Server] = []

    async def listen(self, address: str) -> int:
        """Listen on HOST:PORT, at every address of the host; return the port."""
        host, _, port = address.rpartition(":")
        loop, number = asyncio.get_running_loop(), int(port)
        found = await loop.getaddrinfo(
            host.strip("[]") or None, number, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
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
                await loop.create_server(lambda: _Client(self), sock=listening, backlog=BACKLOG)
            )
        return number

    async def close(self) -> None:
        """Stop listening and close all connections."""
        for server in self._servers:
            server.close()
        for client in list(self._clients):
            client.abort()
        await asyncio.sleep(0)

    def admit(self, peer: str) -> None:
        """Take a connection out of the pending ones; `peer` is gRPC's name of it."""
        if (client := self._names.get(peer)) is not None:
            client.set_pending(False)

    def return_to_pending(self, peer: str) -> None:
        """Count a connection as pending again, because its stream has ended."""
        client = self._names.get(peer)
        if client is not None and not client.pending:
            client.set_pending(True)

    def drop(self, peer: str) -> None:
        """Close a connection; do nothing if it is closed already."""
        if (client := self._names.get(peer)) is not None:
            client.abort()

    def address(self, peer: str) -> str | None:
        """Return the IP address of a connection."""
        client = self._names.get(peer)
        return None if client is None else client.address

    def add(self, client: "_Client") -> None:
        """Register a new connection; close another one if too many are pending."""
        self._clients[client] = None
        pending: dict[str, list[_Client]] = {}
        for each in self._clients:
            if each.pending:
                pending.setdefault(each.address, []).append(each)
        if sum(map(len, pending.values())) > self._max_pending:
            self.expire(max(pending.values(), key=len)[0])

    def bind(self, client: "_Client", connection: socket.socket) -> None:
        """Give the socket to gRPC a name that identifies the connection."""
        if sys.platform == "linux":
            # A name chosen by the kernel, outside the file system: works with a full disk, too.
            connection.bind("")
            client.name = f"unix-abstract:{connection.getsockname()[1:].decode()}"
        else:
            self._n_names += 1
            path = self.target.with_name(str(self._n_names))
            connection.bind(str(path))
            client.name = f"unix:{path}"
        self._names[client.name] = client

    def remove(self, client: "_Client") -> None:
        """Forget a closed connection."""
        self._clients.pop(client, None)
        self._names.pop(client.name, None)
        if client.name.startswith("unix:"):
            Path(client.name.removeprefix("unix:")).unlink(missing_ok=True)

    def expire(self, client: "_Client") -> None:
        """Close a pending connection."""
        self._on_drop(client.address)
        client.abort()


class _Side(asyncio.Protocol):
    """One of the two sockets of a forwarded connection."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.other: _Side | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(high=BUFFER_BYTES)

    def data_received(self, data: bytes) -> None:
        assert self.other is not None
        self.other.transport.write(data)

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        if self.other is not None:
            # Closes after the bytes in its buffer are sent.
            self.other.transport.close()


class _Client(_Side):
    """The socket of a client. The socket to gRPC is opened when the client sends its first byte."""

    def __init__(self, front: Front) -> None:
        super().__init__()
        self._front = front
        self.address, self.pending = "?", True
        self.name = ""
        self._early: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        name: Any = transport.get_extra_info("peername")
        self.address = str(name[0]) if name else "?"
        self._front.add(self)
        self.set_pending(True)

    def set_pending(self, pending: bool) -> None:
        self.pending = pending
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if pending:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._front.timeout, self._front.expire, self)

    def abort(self) -> None:
        self.set_pending(False)
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            super().data_received(data)
            return
        self.transport.pause_reading()
        self._early.append(data)
        if len(self._early) == 1:
            self._opening = asyncio.get_running_loop().create_task(self._open())

    async def _open(self) -> None:
        loop, connection = asyncio.get_running_loop(), None
        try:
            connection = socket.socket(socket.AF_UNIX)
            connection.setblocking(False)
            self._front.bind(self, connection)
            await loop.sock_connect(connection, str(self._front.target))
            other = _Side()
            other.other = self
            await loop.create_unix_connection(lambda: other, sock=connection)
        except OSError as error:
            if connection is not None:
                connection.close()
            self.transport.abort()
            message = "a connection was closed because it could not be forwarded"
            loop.call_exception_handler({"message": message, "exception": error})
            return
        if self.transport.is_closing():
            other.transport.abort()
            return
        self.other = other
        for each in self._early:
            other.transport.write(each)
        self._early.clear()
        self.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(error)
        with suppress(OSError):
            self._front.remove(self)
