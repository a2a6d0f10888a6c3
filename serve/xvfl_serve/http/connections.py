"""The open connections of a port, and which of them to close if there are too many.

A connection is *waiting* until it has sent a complete request, and again after the answer. Waiting
connections cost an attacker nothing, so they are closed first: with too many connections, the
oldest waiting one is closed for the new one. A connection whose request is being answered is never
closed, unless the client does not read the answer.
"""

from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import Generic, Protocol, TypeVar

try:
    import resource
except ModuleNotFoundError:  # Windows, which has no such limit.
    resource = None  # type: ignore[assignment]

MAX_CONNECTIONS = 4096
DESCRIPTOR_SHARE = 4
"""A port takes at most this part of the process's file descriptors: a quarter."""


@dataclass(frozen=True)
class Limits:
    """Limits of a port.

    Parameters
    ----------
    connections : int
        Open connections, including those in the TLS handshake.
    per_address : int
        Open connections of one IP address; of IPv6, of one /64 network.
    header_seconds : float, default=10.0
        Time from the connection, or the previous answer, to the complete headers of a request.
    idle_seconds : int, default=5
        Time that a connection may be silent after an answer.
    answer_seconds : float, default=60.0
        Time in which a client must read the next 64 KiB of an answer.
    max_header_bytes : int, default=16384
        Largest request line and headers together.
    unread_bytes : int, default=134217728
        Answers that the clients have not read, of all connections together.
    """

    connections: int
    per_address: int
    header_seconds: float = 10.0
    idle_seconds: int = 5
    answer_seconds: float = 60.0
    max_header_bytes: int = 2**14
    unread_bytes: int = 2**27


def port_limits(connections: int = MAX_CONNECTIONS) -> Limits:
    """Return the limits of a port: a quarter of the descriptors at most, half by one address.

    Parameters
    ----------
    connections
        Largest number of connections, if the process may open enough files.
    """
    if resource is not None:
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if files != resource.RLIM_INFINITY:
            connections = min(connections, files // DESCRIPTOR_SHARE)
    connections = max(connections, 2)
    return Limits(connections, connections // 2)


class Connection(Protocol):
    """An open connection."""

    address: str
    """Its client's address, as `client_key` returns it."""

    def abort(self) -> None:
        """Close the connection at once."""


C = TypeVar("C", bound=Connection)


class Connections(Generic[C]):
    """The open connections of a port, by address."""

    def __init__(self, limits: Limits) -> None:
        self._limits, self._count = limits, 0
        self._open: dict[str, set[C]] = {}
        self._waiting: dict[str, dict[C, None]] = {}

    def add(self, connection: C) -> bool:
        """Register a new, waiting connection; return False if the port has too many connections.

        With too many connections, a waiting one is closed: of the same address if that has too
        many, otherwise of the address that has the most waiting ones.
        """
        address = connection.address
        if len(self._open.get(address, ())) >= self._limits.per_address:
            if not self._close_oldest(address):
                return False
        elif self._count >= self._limits.connections and not self.close_one():
            return False
        self._open.setdefault(address, set()).add(connection)
        self._count += 1
        self.set_waiting(connection)
        return True

    def remove(self, connection: C) -> None:
        """Forget a closed connection; do nothing if it is not registered."""
        address = connection.address
        own = self._open.get(address, set())
        if connection in own:
            self.set_busy(connection)
            own.remove(connection)
            self._count -= 1
            if not own:
                del self._open[address]

    def set_waiting(self, connection: C) -> None:
        """Mark a registered connection as waiting; it is closed after those that wait already."""
        if connection in self._open.get(connection.address, ()):
            self._waiting.setdefault(connection.address, {})[connection] = None

    def set_busy(self, connection: C) -> None:
        """Keep a connection open, because its request is being answered."""
        waiting = self._waiting.get(connection.address, {})
        waiting.pop(connection, None)
        if not waiting:
            self._waiting.pop(connection.address, None)

    def close_one(self) -> bool:
        """Close the oldest waiting connection of the address that has the most of them."""
        if not self._waiting:
            return False
        return self._close_oldest(max(self._waiting, key=lambda each: len(self._waiting[each])))

    def all(self) -> list[C]:
        """Return all connections."""
        return [each for own in self._open.values() for each in own]

    def _close_oldest(self, address: str) -> bool:
        oldest = next(iter(self._waiting.get(address, {})), None)
        if oldest is None:
            return False
        self.remove(oldest)
        oldest.abort()
        return True


def client_key(address: str) -> str:
    """Return the address by which connections are counted: of IPv6, its /64 network."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(IPv6Address(int(found) >> 64 << 64))
    return address
