"""What both sides of a session check about a message, and how they name the session."""

from collections.abc import Sequence
from hashlib import sha256

from xvfl.errors import MatchingError
from xvfl.matching.session_messages import PART, Kind, Message

MOST_IDS = 10_000_000
"""Ids of the other side that a session allows unless told otherwise."""


def session_name(hello: Message, welcome: Message) -> bytes:
    """Name a session by both nonces, sizes and the rule: a message of another is not taken."""
    said = hello.encode() + welcome.encode()
    return sha256(b"xvfl session 1\0" + said).digest()[: len(hello.session)]


def sizes(count: int) -> list[int]:
    """Give the size of each part of so many items."""
    return [min(PART, count - start) for start in range(0, count, PART)]


def check(
    message: Message, kind: Kind, session: bytes, number: int, size: int | None = None
) -> Message:
    """Refuse a message that is not the next one; `size` is how many items it must have."""
    if message.kind != kind or message.number != number:
        raise MatchingError(
            f"expected {kind.name} {number}, got {message.kind.name} {message.number}; "
            "a message was lost, repeated or out of order: match again"
        )
    if message.session != session:
        raise MatchingError(
            f"{kind.name}: expected session {session.hex()}, got {message.session.hex()}; "
            "the message belongs to another session: match again"
        )
    if size is not None and len(message.items()) != size:
        raise MatchingError(
            f"{kind.name} {number}: expected {size} items, got {len(message.items())}"
        )
    return message


def check_count(count: int, most: int, whose: str) -> None:
    """Refuse more ids than this side allows: they may be guesses."""
    if count > most:
        raise MatchingError(
            f"{whose} brings {count} ids, but at most {most} are allowed here; "
            "ask why, and raise `max_ids` if it is right"
        )


def refuse_repeated(items: Sequence[bytes], seen: set[bytes], kind: Kind) -> None:
    """Refuse an item that came before: ids are distinct, so what stands for them is."""
    before = len(seen)
    seen.update(items)
    if len(seen) != before + len(items):
        raise MatchingError(f"{kind.name}: expected each item once, but one came again")
