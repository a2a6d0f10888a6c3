"""Connections to parties, lent to another process of the same user on this machine.

One process of a coordinator listens, for years. Another one, such as a training, uses its
connections through a socket in the state folder, which only this user can open: no party notices
which process asks.

Each connection to a party has a connection of its own to the socket. Messages of the borrower are a
letter and a body: `P` names a party and those that the listening process shall accept, `H` asks for
the party's `Hello`, `R` has a request. The replies to `H` and `R` begin with the same letter; `E`
has the reason why there is no reply.
"""

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from os import O_DIRECTORY, O_RDONLY, close
from os import open as open_folder
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Protocol

from xvfl.errors import PartyError, WireError
from xvfl.system.locks import file_lock
from xvfl.wire import codec
from xvfl.wire.messages import Hello, Message
from xvfl.wire.protocol import NEWEST
from xvfl.wire.transport import Transport

SOCKET, LOCK = "listener.socket", "listener.lock"
BUSY = "another process uses the connections to the parties; wait for its end"
GONE = "the coordinator process that holds the connections has ended"
HELLO_TIMEOUT_S = 10.0


class Lender(Protocol):
    """The process that listens for parties."""

    @property
    def transports(self) -> Mapping[str, Transport]:
        """The connections that are lent, by party."""
        ...

    def accept_parties(self, names: Sequence[str]) -> None:
        """Accept further parties."""
        ...

    def reconnect(self, name: str) -> None:
        """Close the connection to a party, which connects again and describes itself anew."""
        ...


@contextmanager
def lend_connections(folder: Path, lender: Lender) -> Iterator[None]:
    """Lend connections through the socket in a folder, in threads, until the block ends."""
    with _near(folder) as at:
        (folder / SOCKET).unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(at / SOCKET))
            (folder / SOCKET).chmod(0o600)
            listening.listen()
            thread = threading.Thread(target=_accept, args=(listening, lender), daemon=True)
            thread.start()
            try:
                yield
            finally:
                (folder / SOCKET).unlink(missing_ok=True)
                # Wakes the thread.
                with suppress(OSError):
                    listening.shutdown(socket.SHUT_RDWR)


@contextmanager
def borrow_connections(
    folder: Path, names: Sequence[str]
) -> Iterator["Mapping[str, LentTransport] | None"]:
    """Yield the connections of the process that listens; None if there is no such process.

    One process at a time may borrow them.
    """
    with ExitStack() as stack:
        if not (folder / SOCKET).exists():
            yield None
            return
        stack.enter_context(file_lock(folder / LOCK, BUSY))
        try:
            lent = {name: LentTransport(folder, name, names) for name in names}
        except OSError:
            yield None
            return
        for each in lent.values():
            stack.callback(each.close)
        yield lent


class LentTransport:
    """The `Transport` to a party whose connection another process has."""

    def __init__(self, folder: Path, name: str, names: Sequence[str]) -> None:
        """Connect to the process that listens; `names` are the parties that it shall accept."""
        self.name = name
        with _near(folder) as at:
            self._connection = _connect(at / SOCKET)
        self._connection.send_bytes(b"P" + json.dumps([name, *names]).encode())
        self._hellos = SimpleQueue[bytes | None]()
        self._lock, self._asking = threading.Lock(), threading.Lock()
        self._open: tuple[int, Future[Message]] | None = None
        self._sent = self._received = 0
        self._gone = False
        threading.Thread(target=self._read, name=f"lent {name}", daemon=True).start()

    def hello(self) -> Hello | None:
        """Return the party's `Hello` while it is connected and idle, else None."""
        if self._open is not None or self._gone:
            return None
        with self._asking:
            self._send(b"H")
            try:
                frame = self._hellos.get(timeout=HELLO_TIMEOUT_S)
            except Empty:
                # A later answer would belong to another question.
                self._gone, frame = True, None
        message = codec.decode(frame) if frame else None
        return message if isinstance(message, Hello) else None

    def request(self, message: Message) -> Future[Message]:
        """Send a request; the future holds the reply, also after a reconnection."""
        reply, frame = Future[Message](), codec.encode(message, NEWEST)
        self._open = message.request_id, reply
        self._sent += len(frame)
        self._send(b"R" + frame)
        if self._gone:
            self._fail(GONE)
        return reply

    def traffic(self) -> tuple[int, int]:
        """Bytes sent and received so far."""
        return self._sent, self._received

    def close(self) -> None:
        """Give the connection back."""
        with suppress(OSError):
            self._connection.send_bytes(b"Q")

    def _send(self, data: bytes) -> None:
        try:
            with self._lock:
                self._connection.send_bytes(data)
        except OSError:
            self._gone = True

    def _read(self) -> None:
        with suppress(OSError, EOFError):
            while data := self._connection.recv_bytes():
                self._take(data[:1], data[1:])
        self._gone = True
        self._hellos.put(None)
        self._fail(GONE)

    def _take(self, kind: bytes, body: bytes) -> None:
        if kind == b"H":
            self._hellos.put(body)
        elif kind == b"E":
            self._fail(body.decode())
        else:
            self._received += len(body)
            try:
                message, opened = codec.decode(body), self._open
            except WireError as error:
                self._fail(str(error))
                return
            if opened is not None and message.request_id == opened[0]:
                self._open = None
                opened[1].set_result(message)

    def _fail(self, reason: str) -> None:
        opened, self._open = self._open, None
        if opened is not None and not opened[1].done():
            opened[1].set_exception(PartyError(reason, (self.name,)))


def _accept(listening: socket.socket, lender: Lender) -> None:
    with suppress(OSError):
        while True:
            connection = Connection(listening.accept()[0].detach())
            threading.Thread(target=_lend, args=(connection, lender), daemon=True).start()


def _lend(connection: Connection, lender: Lender) -> None:
    """Pass the requests of a borrower to a party, and the replies back."""
    lock, name = threading.Lock(), ""

    def send(data: bytes) -> None:
        with lock, suppress(OSError):
            connection.send_bytes(data)

    with suppress(OSError, EOFError), connection:
        name, *names = json.loads(connection.recv_bytes()[1:])
        lender.accept_parties(names)
        transport = lender.transports[name]
        while (data := connection.recv_bytes()) != b"Q":
            if data == b"H":
                hello = transport.hello()
                send(b"H" + (codec.encode(hello, NEWEST) if hello is not None else b""))
            else:
                _forward(transport, data[1:], send)
    if name:
        # What the borrower has matched is in the party's next `Hello`.
        lender.reconnect(name)


def _forward(transport: Transport, frame: bytes, send: Callable[[bytes], None]) -> None:
    try:
        message = codec.decode(frame)
    except WireError as error:
        # The borrower runs another version of xvfl.
        send(b"E" + str(error).encode())
        return
    transport.request(message).add_done_callback(partial(_reply, send))


def _reply(send: Callable[[bytes], None], future: Future[Message]) -> None:
    error = future.exception()
    if error is None:
        send(b"R" + codec.encode(future.result(), NEWEST))
    else:
        send(b"E" + str(error).encode())


@contextmanager
def _near(folder: Path) -> Iterator[Path]:
    """Yield a short path to a folder: that of a socket has at most 107 characters."""
    descriptor = open_folder(folder, O_RDONLY | O_DIRECTORY)
    try:
        short = Path(f"/proc/self/fd/{descriptor}")
        yield short if short.exists() else folder
    finally:
        close(descriptor)


def _connect(path: Path) -> Connection:
    connecting = socket.socket(socket.AF_UNIX)
    try:
        connecting.connect(str(path))
    except OSError:
        connecting.close()
        raise
    return Connection(connecting.detach())
