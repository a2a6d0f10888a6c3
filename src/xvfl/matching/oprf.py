"""One half of a session: the oblivious pseudo-random function 2HashDH.

The client finds which of its ids the server holds. Both take part with a scalar of their own.
"""

from collections.abc import Sequence
from enum import Enum

from xvfl.matching.group import (
    ThreadMap,
    hash_to_point,
    invert,
    make_tag,
    multiply,
    random_order,
    random_scalar,
)


class Half(Enum):
    """The half of a session, named after the side that is the client."""

    COORDINATOR = b"coordinator"
    PARTY = b"party"


def hash_domain(half: Half, session: bytes, rule: str) -> bytes:
    """Return the prefix of all hashes of one half of one session.

    Points and tags of one half mean nothing in the other half or in another session.
    """
    return b"xvfl matching 2\0" + half.value + b"\0" + session + rule.encode() + b"\0"


class OprfClient:
    """Blinds ids, and finds those that the server holds."""

    def __init__(self, texts: Sequence[str], domain: bytes, threads: ThreadMap) -> None:
        self._order = random_order(len(texts))
        self._texts = [texts[i] for i in self._order]
        self._domain, self._threads = domain, threads
        self._scalar = random_scalar()
        self._inverse = invert(self._scalar)
        self._tags: list[bytes] = []

    def blind(self, part: slice) -> list[bytes]:
        """Return the blinded points of a part of the ids, in random order."""
        return self._threads.map(
            lambda text: multiply(self._scalar, hash_to_point(text, self._domain)),
            self._texts[part],
        )

    def finish(self, part: slice, evaluated: Sequence[bytes]) -> None:
        """Unblind a part that the server evaluated, and compute the tags of its ids."""
        pairs = list(zip(self._texts[part], evaluated, strict=True))
        self._tags += self._threads.map(
            lambda pair: make_tag(pair[0], multiply(self._inverse, pair[1]), self._domain), pairs
        )

    def find(self, server_tags: Sequence[bytes]) -> dict[int, int]:
        """Return the matches: own row → position in the server's list of tags."""
        positions = {tag: position for position, tag in enumerate(server_tags)}
        pairs = zip(self._order.tolist(), self._tags, strict=True)
        return {row: positions[tag] for row, tag in pairs if tag in positions}


class OprfServer:
    """Evaluates blinded points, and publishes the tags of its own ids."""

    def __init__(self, texts: Sequence[str], domain: bytes, threads: ThreadMap) -> None:
        self.order = random_order(len(texts))
        """Row of each tag."""
        self._texts = [texts[i] for i in self.order]
        self._domain, self._threads = domain, threads
        self._scalar = random_scalar()

    def evaluate(self, points: Sequence[bytes]) -> list[bytes]:
        """Multiply blinded points by this side's scalar."""
        return self._threads.map(lambda point: multiply(self._scalar, point), points)

    def tags(self, part: slice) -> list[bytes]:
        """Return the tags of a part of the ids, in random order."""
        return self._threads.map(self._tag, self._texts[part])

    def _tag(self, text: str) -> bytes:
        point = multiply(self._scalar, hash_to_point(text, self._domain))
        return make_tag(text, point, self._domain)
