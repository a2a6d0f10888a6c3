"""The messages of a matching session, as bytes.

magic "XM" | version 1 byte | kind 1 byte | session 16 bytes | number 4 bytes | items

`number` is the number of a part, or a count in HELLO, WELCOME and DONE. All integers little-endian.
Version 2 (xvfl 0.3) ran the pseudo-random function in both directions.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum

from xvfl.errors import MatchingError
from xvfl.matching.group import POINT_BYTES, PROOF_BYTES, TAG_BYTES

MAGIC, VERSION = b"XM", 3
HEADER = struct.Struct("<2sBB16sI")
NONCE_BYTES, POSITION_BYTES = 16, 4
"""Bytes of a nonce or session id, and of a position in the party's list."""
MAX_RULE_BYTES = 64
PART_SIZE = 2**14
"""Items in a part: half a MiB of points."""


class MessageKind(IntEnum):
    """Kind of a message; the package's docstring shows the order."""

    HELLO = 1
    WELCOME = 2
    BLIND = 3
    EVALUATED = 4
    WANT_TAGS = 5
    TAGS = 6
    MATCHED = 7
    DONE = 8


ITEM_BYTES = {
    MessageKind.HELLO: 1,
    MessageKind.WELCOME: NONCE_BYTES,
    MessageKind.BLIND: POINT_BYTES,
    MessageKind.EVALUATED: POINT_BYTES,
    MessageKind.WANT_TAGS: 1,
    MessageKind.TAGS: TAG_BYTES,
    MessageKind.MATCHED: POSITION_BYTES + PROOF_BYTES,
    MessageKind.DONE: 1,
}
"""Bytes of an item of each kind."""
MAX_ITEMS = {
    MessageKind.HELLO: MAX_RULE_BYTES,
    MessageKind.WELCOME: 1,
    MessageKind.WANT_TAGS: 0,
    MessageKind.DONE: 0,
}
"""Maximum number of items in a message; PART_SIZE for all other kinds."""
MAX_MESSAGE_BYTES = HEADER.size + PART_SIZE * max(ITEM_BYTES.values())
"""Size of the largest message."""


@dataclass(frozen=True)
class MatchingMessage:
    """One message of a matching session."""

    kind: MessageKind
    session: bytes
    number: int
    body: bytes = b""

    def items(self) -> list[bytes]:
        """Split the body into its items."""
        width = ITEM_BYTES[self.kind]
        return [self.body[at : at + width] for at in range(0, len(self.body), width)]

    def encode(self) -> bytes:
        """Return the message as bytes."""
        return HEADER.pack(MAGIC, VERSION, self.kind, self.session, self.number) + self.body


def decode(data: bytes) -> MatchingMessage:
    """Parse a message, or raise `MatchingError`."""
    if len(data) < HEADER.size:
        raise MatchingError(f"expected at least {HEADER.size} bytes of a message, got {len(data)}")
    magic, version, kind, session, number = HEADER.unpack_from(data)
    if magic != MAGIC or version != VERSION:
        raise MatchingError(
            f"expected a matching message of version {VERSION}, got {magic!r} version {version}; "
            "use the same version of xvfl on both sides"
        )
    if kind not in ITEM_BYTES:
        raise MatchingError(f"expected a kind from 1 to {max(ITEM_BYTES)}, got {kind}")
    body = data[HEADER.size :]
    count, rest = divmod(len(body), ITEM_BYTES[kind])
    limit = MAX_ITEMS.get(kind, PART_SIZE)
    if rest or count > limit:
        raise MatchingError(
            f"{MessageKind(kind).name}: expected at most {limit} items of {ITEM_BYTES[kind]} "
            f"bytes, got {len(body)} bytes"
        )
    return MatchingMessage(MessageKind(kind), session, number, body)
