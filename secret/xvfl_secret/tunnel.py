"""Mutual TLS between the nodes, in front of SPU's sockets.

SPU's own TLS accepts every certificate of an authority. Here a node accepts those of the two other
nodes alone, by their digest, before a byte is passed on. SPU listens on a Unix socket in a folder
that only this user can enter, and reaches each other node through another such socket:

    SPU ─ unix ─ tunnel ═ TLS, pinned ═ tunnel ─ unix ─ SPU
"""

import asyncio
import contextlib
import logging
import ssl
import threading
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from weakref import WeakSet

from xvfl_secret.errors import SecretError
from xvfl_secret.settings import NodeSettings

# Python 3.11 warns at the end of each connection that has switched to TLS.
logging.getLogger("asyncio").setLevel(logging.ERROR)
READ_BYTES = 2**18
HANDSHAKE_S = 10.0
MAX_HANDSHAKES = 64
"""Connections that may be in their handshake at once; more are closed."""
MAX_CONNECTIONS = 64
"""Connections of the other nodes at once."""


class Tunnel:
    """Passes bytes between this node's SPU and those of the two other nodes; a context manager.

    Parameters
    ----------
    settings
        The node.
    folder
        A folder that only this user can enter; Unix sockets have short paths.
    """

    def __init__(self, settings: NodeSettings, folder: Path) -> None:
        self._settings, self._folder = settings, folder
        self._rank = settings.rank
        self._on_lost: Callable[[str], None] | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._transports: WeakSet[asyncio.WriteTransport] = WeakSet()
        self._handshakes = self._connections = 0
        self.bytes_sent = self.bytes_received = 0
        """Bytes on connections that this node opened or accepted, without those of TLS."""
        self.refused = 0
        """Connections that did not have the certificate of a node."""

    def socket(self, rank: int) -> str:
        """Return SPU's address of a node."""
        return f"unix:{self._folder / str(rank)}.sock"

    def __enter__(self) -> "Tunnel":
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()
        except (OSError, ssl.SSLError, ValueError) as error:
            self._end()
            raise SecretError(f"{self._settings.listen}: cannot listen ({error})") from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.watch(None)
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._end()

    def watch(self, on_lost: Callable[[str], None] | None) -> None:
        """Call a function with the name of a node whose connection ends; None stops it."""
        self._on_lost = on_lost

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self) -> None:
        host, _, port = self._settings.listen.rpartition(":")
        accept = await asyncio.start_server(self._accept, host.strip("[]"), int(port))
        self._servers = [accept]
        for rank in set(range(len(self._settings.names))) - {self._rank}:
            path = self.socket(rank).removeprefix("unix:")
            open_to = self._opener(rank)
            self._servers.append(await asyncio.start_unix_server(open_to, path))

    async def _stop(self) -> None:
        for server in self._servers:
            server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # A closed TLS connection waits for the other side, which may be gone; the loop ends now.
        for transport in list(self._transports):
            transport.abort()
        await asyncio.sleep(0)

    def _context(self, purpose: ssl.Purpose) -> ssl.SSLContext:
        settings = self._settings
        context = ssl.create_default_context(purpose, cafile=settings.ca_certificate)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname, context.verify_mode = False, ssl.CERT_REQUIRED
        context.load_cert_chain(settings.certificate, settings.private_key)
        return context

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Accept a connection of another node, and pass it on to SPU."""
        if self._handshakes >= MAX_HANDSHAKES:
            writer.close()
            return
        self._handshakes += 1
        try:
            context = self._context(ssl.Purpose.CLIENT_AUTH)
            await writer.start_tls(context, ssl_handshake_timeout=HANDSHAKE_S)
            peer = self._peer(writer)
        except (OSError, ssl.SSLError, ValueError):
            peer = None
        finally:
            self._handshakes -= 1
        if peer is None or self._connections >= MAX_CONNECTIONS:
            self.refused += 1
            writer.close()
            return
        self._track()
        try:
            own = await asyncio.open_unix_connection(self.socket(self._rank).removeprefix("unix:"))
        except OSError:
            writer.close()
            return
        await self._relay((reader, writer), own, peer)

    def _opener(
        self, rank: int
    ) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], "asyncio.Future[None]"]:
        """Return a function that passes a connection of SPU on to another node."""
        host, _, port = self._settings.addresses[rank].rpartition(":")

        async def open_to(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._track()
            try:
                other = await asyncio.open_connection(
                    host.strip("[]"),
                    int(port),
                    ssl=self._context(ssl.Purpose.SERVER_AUTH),
                    server_hostname=host.strip("[]"),
                    ssl_handshake_timeout=HANDSHAKE_S,
                )
            except (OSError, ssl.SSLError):
                writer.close()
                return
            if self._peer(other[1]) != rank:
                self.refused += 1
                writer.close()
                other[1].close()
                return
            await self._relay(other, (reader, writer), rank)

        return open_to  # type: ignore[return-value]

    def _peer(self, writer: asyncio.StreamWriter) -> int | None:
        """Return which other node a certificate belongs to; None if to none."""
        found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        digest = sha256(found or b"").hexdigest()
        pins = self._settings.pins
        return pins.index(digest) if digest in pins and digest != pins[self._rank] else None

    def _track(self) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _relay(
        self,
        remote: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        own: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        peer: int,
    ) -> None:
        """Pass bytes in both directions until one side ends."""
        self._connections += 1
        self._transports |= {remote[1].transport, own[1].transport}
        copies = [
            asyncio.ensure_future(self._copy(own[0], remote[1], True)),
            asyncio.ensure_future(self._copy(remote[0], own[1], False)),
        ]
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._connections -= 1
            for each in copies:
                each.cancel()
            await asyncio.gather(*copies, return_exceptions=True)
            for _, writer in (remote, own):
                writer.close()
            if self._on_lost is not None:
                self._on_lost(self._settings.names[peer])

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sent: bool
    ) -> None:
        with contextlib.suppress(OSError, ssl.SSLError):
            while data := await reader.read(READ_BYTES):
                if sent:
                    self.bytes_sent += len(data)
                else:
                    self.bytes_received += len(data)
                writer.write(data)
                await writer.drain()
