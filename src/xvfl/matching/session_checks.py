"""Checks of received messages, and the session id, shared by both sides of a session."""

from collections.abc import Iterator, Sequence
from hashlib import sha256

from xvfl.errors import MatchingError
from xvfl.matching.session_messages import PART_SIZE, VERSION, MatchingMessage, MessageKind

MAX_IDS = 10_000_000
"""Default limit on the other side's ids."""


def session_id(hello: MatchingMessage, welcome: MatchingMessage) -> bytes:
    """Derive the session id from both nonces, both sizes and the rule."""
    greetings = hello.encode() + welcome.encode()
    return sha256(f"xvfl session {VERSION}\0".encode() + greetings).digest()[: len(hello.session)]


def parts(count: int) -> Iterator[tuple[int, slice, int]]:
    """Yield number, slice and size of each part of `count` items."""
    for number, start in enumerate(range(0, count, PART_SIZE)):
        size = min(PART_SIZE, count - start)
        yield number, slice(start, start + size), size


def count_requests(labeled_ids: int, party_ids: int) -> int:
    """Return the requests of a session after HELLO, without those that list the matches."""
    return sum(-(-count // PART_SIZE) for count in (labeled_ids, party_ids))


def check_message(
    message: MatchingMessage,
    kind: MessageKind,
    session: bytes,
    number: int,
    size: int | None = None,
) -> MatchingMessage:
    """Reject a message that is not the next one, or does not have `size` items."""
    if message.kind != kind or message.number != number:
        raise MatchingError(
            f"expected {kind.name} {number}, got {message.kind.name} {message.number}; "
            "a message was lost, repeated or reordered; match again"
        )
    if message.session != session:
        raise MatchingError(
            f"{kind.name}: expected session {session.hex()}, got {message.session.hex()}; "
            "the message belongs to another session; match again"
        )
    if size is not None and len(message.items()) != size:
        raise MatchingError(
            f"{kind.name} {number}: expected {size} items, got {len(message.items())}"
        )
    return message


def check_count(count: int, limit: int, side: str) -> None:
    """Reject more ids than this side allows: they may be guesses."""
    if count > limit:
        raise MatchingError(
            f"{side} has {count} ids, but at most {limit} are allowed here; "
            "find out why, and raise `max_ids` if this is correct"
        )


class SessionItems:
    """The points and tags of a session: each occurs once, whichever side sends it."""

    def __init__(self) -> None:
        self._sent = set[bytes]()
        self._received = set[bytes]()

    def send(self, items: Sequence[bytes]) -> bytes:
        """Record items that this side sends; return them joined."""
        self._sent.update(items)
        return b"".join(items)

    def receive(self, message: MatchingMessage) -> list[bytes]:
        """Return a message's items; reject an item that this side sent or received before."""
        items = message.items()
        if not self._sent.isdisjoint(items):
            raise MatchingError(
                f"{message.kind.name}: expected items of the other side, got an echo of an item "
                "that this side sent"
            )
        before = len(self._received)
        self._received.update(items)
        if len(self._received) != before + len(items):
            raise MatchingError(f"{message.kind.name}: expected each item once, got a duplicate")
        return items
