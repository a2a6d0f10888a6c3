"""The HTTP server of every port: uvicorn, with limits on connections and on time.

uvicorn accepts any number of connections and has no timeout for the first headers. Here each
connection is registered when it is accepted, before the TLS handshake; `connections` decides which
one is closed for a new one. Limits of bodies are in `bodies` and apply after the token check.
"""

import asyncio
import socket
import threading
import time
from functools import partial
from hashlib import sha256

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from xvfl_serve.errors import ServeError
from xvfl_serve.http.connections import Connections, Limits, client_key
from xvfl_serve.http.server_tls import ServerTls

BACKLOG = 2048
ACCEPTED_AT_ONCE = 16
"""Connections that are accepted before the server turns to its requests again."""
CLOSED_AT_ONCE = 16
"""Connections that are closed if no file descriptor is free."""
ACCEPT_PAUSE_S = 0.1
"""Pause after a connection could not be accepted."""
ANSWER_PART = 2**16
"""Bytes of an answer that are handed to a connection at once; the next ones wait for the client."""
TLS_CLOSE_S = 1.0
"""Time in which a client must confirm the end of a TLS connection."""


class HttpServer:
    """Serves an application on a port.

    Parameters
    ----------
    app
        The ASGI application.
    listener
        The socket of `listen`.
    limits
        Limits of connections.
    tls
        Certificate and key; without them, plain HTTP.
    drain_seconds
        Time for the requests in progress when the server is stopped.
    """

    def __init__(
        self,
        app: ASGIApp,
        listener: socket.socket,
        limits: Limits,
        tls: ServerTls | None = None,
        drain_seconds: float = 1.0,
    ) -> None:
        self.app, self._listener, self._drain_seconds = app, listener, drain_seconds
        self.port: int = listener.getsockname()[1]
        config = uvicorn.Config(
            app,
            http=_Connection,
            ws="none",
            loop="asyncio",
            # Do not log every malformed request.
            log_config=None,
            log_level="error",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=limits.idle_seconds,
            timeout_graceful_shutdown=max(1, round(drain_seconds)),
            h11_max_incomplete_event_size=limits.max_header_bytes,
        )
        self._server = _Server(config, limits, tls)
        self._thread: threading.Thread | None = None

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT; then finish the requests in progress."""
        self._server.run([self._listener])

    def start(self, name: str) -> "HttpServer":
        """Serve in a thread of this name until closed."""
        self._thread = threading.Thread(target=self.run, name=name, daemon=True)
        self._thread.start()
        return self

    def close(self) -> None:
        """Finish the requests in progress and end the thread."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(self._drain_seconds + 5)


def listen(host: str, port: int) -> socket.socket:
    """Open the socket of a server.

    Raises
    ------
    OSError
        The address is in use, or not one of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends answers without delay only from sockets that name their protocol.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if host == "::":
            # All addresses of the machine, whatever the default of the operating system is.
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


class _Connection(H11Protocol):
    """A connection: waiting, or busy with a complete request whose answer the client reads."""

    address: str
    connections_of_port: "Connections[_Connection]"
    connecting: "asyncio.Task[object] | None" = None
    busy = False
    since = 0.0
    """When it was accepted, the client last read a part of an answer, or that was complete."""
    _unsent = 0
    """Bytes of the current answer that wait for the client."""
    _fingerprint = ""
    """SHA-256 of the client's certificate, if it has one."""

    @property
    def unread(self) -> int:
        """Bytes of answers that the client has not read."""
        held = 0 if self.transport is None else self.transport.get_write_buffer_size()
        return self._unsent + held

    def abort(self) -> None:
        """Close the connection at once, whatever its state."""
        if self.transport is not None:
            self.transport.abort()
        elif self.connecting is not None:
            self.connecting.cancel()

    def overdue(self, limits: Limits, now: float) -> bool:
        """Return whether a connection has exceeded its time."""
        answering = self.cycle is not None and not self.cycle.response_complete
        if answering and not self.flow.write_paused:
            return False  # The application limits the time of bodies.
        return now - self.since > (limits.answer_seconds if self.unread else limits.header_seconds)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Send answers in parts, as fast as the client reads them; keep the fingerprint."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(ANSWER_PART)
        self.app = partial(self._run, self.app)
        ssl_object = transport.get_extra_info("ssl_object")
        certificate = None if ssl_object is None else ssl_object.getpeercert(True)
        if certificate is not None:
            self._fingerprint = sha256(certificate).hexdigest()

    async def _run(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_parts(message: Message) -> None:
            body, start = message.get("body", b""), 0
            while len(body) - start > ANSWER_PART:
                self._unsent, part = len(body) - start, body[start : start + ANSWER_PART]
                await send({**message, "body": part, "more_body": True})
                start, self.since = start + ANSWER_PART, time.monotonic()
            self._unsent = len(body) - start
            await send({**message, "body": body[start:]} if start else message)
            self._unsent = 0

        scope.setdefault("state", {})["fingerprint"] = self._fingerprint
        await app(scope, receive, send_parts)

    def pause_writing(self) -> None:
        """Give way to new connections while the client does not read."""
        super().pause_writing()
        self._note_state()

    def resume_writing(self) -> None:
        """Go on with the answer."""
        super().resume_writing()
        self._note_state()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self.connections_of_port.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read a part of a request."""
        super().data_received(data)
        self._note_state()

    def on_response_complete(self) -> None:
        """Wait for the next request, which may have arrived already."""
        self.since = time.monotonic()
        super().on_response_complete()
        self._note_state()

    def _note_state(self) -> None:
        cycle = self.cycle
        busy = cycle is not None and not cycle.response_complete and not cycle.more_body
        busy = busy and not self.flow.write_paused
        if busy != self.busy:
            self.busy = busy
            if busy:
                self.connections_of_port.set_busy(self)
            else:
                self.connections_of_port.set_waiting(self)


class _Server(uvicorn.Server):
    """uvicorn's server with an accept loop that keeps the limits."""

    def __init__(self, config: uvicorn.Config, limits: Limits, tls: ServerTls | None) -> None:
        super().__init__(config)
        self._limits, self._tls = limits, tls
        self._connections = Connections[_Connection](limits)
        self._accepting = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application and accept connections."""
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            raise ServeError("the server could not be started; its log has the reason")
        self.servers = []
        self._accepting = True
        for listener in sockets or ():
            listener.setblocking(False)
            self._watch(listener)
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more connections, finish the requests in progress, close the others."""
        self._accepting = False
        loop = asyncio.get_running_loop()
        for listener in sockets or ():
            loop.remove_reader(listener)
        for each in self._connections.all():
            if each.connecting is not None:
                each.abort()
        await super().shutdown(sockets)
        for each in self._connections.all():
            each.abort()
        await asyncio.sleep(0)

    async def on_tick(self, counter: int) -> bool:
        """Close connections that have exceeded their time or the memory, once a second."""
        if counter % 10 == 0:
            now = time.monotonic()
            unread = 0
            # Those that have read last are kept.
            for each in sorted(self._connections.all(), key=lambda each: -each.since):
                unread += each.unread
                full = each.unread > 0 and unread > self._limits.unread_bytes
                if full or each.overdue(self._limits, now):
                    unread -= each.unread
                    self._connections.remove(each)
                    each.abort()
        return await super().on_tick(counter)

    def _watch(self, listener: socket.socket) -> None:
        if self._accepting:
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        """Accept the next connections; pause if no file descriptor is free."""
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                accepted, (host, *_) = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                # The connection stays in the queue: without the pause it is tried again at once.
                loop = asyncio.get_running_loop()
                loop.remove_reader(listener)
                for _ in range(CLOSED_AT_ONCE):
                    self._connections.close_one()
                loop.call_later(ACCEPT_PAUSE_S, self._watch, listener)
                return
            self._open(accepted, host)

    def _open(self, accepted: socket.socket, host: str) -> None:
        """Register a connection and start it; close it if the port has too many connections."""
        loop = asyncio.get_running_loop()
        connection = _Connection(self.config, self.server_state, self.lifespan.state, loop)
        connection.connections_of_port = self._connections
        connection.address, connection.since = client_key(host), time.monotonic()
        if not self._connections.add(connection):
            accepted.close()
            return
        accepted.setblocking(False)
        times = None if self._tls is None else self._limits.header_seconds
        connecting = loop.create_task(
            loop.connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=None if self._tls is None else self._tls(),
                ssl_handshake_timeout=times,
                ssl_shutdown_timeout=None if self._tls is None else TLS_CLOSE_S,
            )
        )
        connection.connecting = connecting
        connecting.add_done_callback(partial(self._opened, connection, accepted))

    def _opened(
        self, connection: _Connection, accepted: socket.socket, task: "asyncio.Task[object]"
    ) -> None:
        """Forget a connection that was not established, such as one without a TLS handshake."""
        connection.connecting = None
        if task.cancelled() or task.exception() is not None:
            self._connections.remove(connection)
            accepted.close()
