"""Checks of received messages, and the session id, shared by both sides of a session."""

from collections.abc import Sequence
from hashlib import sha256

from xvfl.errors import MatchingError
from xvfl.matching.session_messages import PART_SIZE, MatchingMessage, MessageKind

MAX_IDS = 10_000_000
"""Default limit on the other side's ids."""


def session_id(hello: MatchingMessage, welcome: MatchingMessage) -> bytes:
    """Derive the session id from both nonces, both sizes and the rule."""
    greetings = hello.encode() + welcome.encode()
    return sha256(b"xvfl session 1\0" + greetings).digest()[: len(hello.session)]


def part_sizes(count: int) -> list[int]:
    """Return the size of each part of `count` items."""
    return [min(PART_SIZE, count - start) for start in range(0, count, PART_SIZE)]


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


def reject_duplicates(items: Sequence[bytes], seen: set[bytes], kind: MessageKind) -> None:
    """Reject an item received before: ids are distinct, so their points and tags are too."""
    before = len(seen)
    seen.update(items)
    if len(seen) != before + len(items):
        raise MatchingError(f"{kind.name}: expected each item once, got a duplicate")
