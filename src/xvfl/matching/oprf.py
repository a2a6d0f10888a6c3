"""The oblivious pseudo-random function 2HashDH, by which the client finds ids of the server.

Both take part with a scalar of their own.
"""

from collections.abc import Sequence
from typing import NamedTuple

from xvfl.matching.group import (
    ThreadMap,
    hash_to_point,
    invert,
    multiply,
    random_order,
    random_scalar,
    tag_and_proof,
)


class Claim(NamedTuple):
    """An id that both sides have."""

    row: int
    """Row of the client's id."""
    position: int
    """Position of its tag in the server's list."""
    proof: bytes
    """Proof that the client has the id."""


def hash_domain(session: bytes, rule: str) -> bytes:
    """Return the prefix of all hashes of a session; in another one its points mean nothing."""
    return b"xvfl matching 3\0" + session + rule.encode() + b"\0"


class OprfClient:
    """Blinds ids, and finds those that the server holds."""

    def __init__(self, texts: Sequence[str], domain: bytes, threads: ThreadMap) -> None:
        self._order = random_order(len(texts))
        self._texts = [texts[i] for i in self._order]
        self._domain, self._threads = domain, threads
        self._scalar = random_scalar()
        self._inverse = invert(self._scalar)
        self._hashes: list[tuple[bytes, bytes]] = []

    def blind(self, part: slice) -> list[bytes]:
        """Return the blinded points of a part of the ids, in random order."""
        return self._threads.map(
            lambda text: multiply(self._scalar, hash_to_point(text, self._domain)),
            self._texts[part],
        )

    def finish(self, part: slice, evaluated: Sequence[bytes]) -> None:
        """Unblind a part that the server evaluated; compute the tags and proofs of its ids."""
        pairs = list(zip(self._texts[part], evaluated, strict=True))
        self._hashes += self._threads.map(
            lambda pair: tag_and_proof(pair[0], multiply(self._inverse, pair[1]), self._domain),
            pairs,
        )

    def find(self, server_tags: Sequence[bytes]) -> list[Claim]:
        """Return the own ids whose tag is in the server's list."""
        positions = {tag: position for position, tag in enumerate(server_tags)}
        return [
            Claim(row, positions[tag], proof)
            for row, (tag, proof) in zip(self._order.tolist(), self._hashes, strict=True)
            if tag in positions
        ]


class OprfServer:
    """Evaluates blinded points, and publishes the tags of its own ids."""

    def __init__(self, texts: Sequence[str], domain: bytes, threads: ThreadMap) -> None:
        self.order = random_order(len(texts))
        """Row of each tag."""
        self.proofs: list[bytes] = []
        """Proof of each tag that was returned by `tags`."""
        self._texts = [texts[i] for i in self.order]
        self._domain, self._threads = domain, threads
        self._scalar = random_scalar()

    def evaluate(self, points: Sequence[bytes]) -> list[bytes]:
        """Multiply blinded points by this side's scalar."""
        return self._threads.map(lambda point: multiply(self._scalar, point), points)

    def tags(self, part: slice) -> list[bytes]:
        """Return the tags of the next part of the ids, in random order."""
        hashes = self._threads.map(self._tag_and_proof, self._texts[part])
        self.proofs += [proof for _, proof in hashes]
        return [tag for tag, _ in hashes]

    def _tag_and_proof(self, text: str) -> tuple[bytes, bytes]:
        point = multiply(self._scalar, hash_to_point(text, self._domain))
        return tag_and_proof(text, point, self._domain)
