"""The messages of a matching session, as bytes.

magic "XM" | version 1 byte | kind 1 byte | session 16 bytes | number 4 bytes | items

`number` is a part's number, or a count in HELLO, WELCOME and DONE. All integers little-endian.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum

from xvfl.errors import MatchingError
from xvfl.matching.group import POINT, TAG

MAGIC, VERSION = b"XM", 1
HEAD = struct.Struct("<2sBB16sI")
NONCE, PLACE = 16, 4
"""Bytes of a nonce or session name, and of a place in the party's list."""
LONGEST_RULE = 64
PART = 2**14
"""Items in a part: half a MiB of points."""


class Kind(IntEnum):
    """What a message says; the package's docstring shows the order."""

    HELLO = 1
    WELCOME = 2
    BLIND = 3
    EVALUATED = 4
    WANT = 5
    TAGS = 6
    MATCHED = 7
    DONE = 8


WIDTHS = {
    Kind.HELLO: 1,
    Kind.WELCOME: NONCE,
    Kind.BLIND: POINT,
    Kind.EVALUATED: POINT,
    Kind.WANT: 1,
    Kind.TAGS: TAG,
    Kind.MATCHED: PLACE,
    Kind.DONE: 1,
}
"""Bytes of an item of each kind."""
MOST = {Kind.HELLO: LONGEST_RULE, Kind.WELCOME: 1, Kind.WANT: 0, Kind.DONE: 0}
"""Most items in a message; a part where nothing else is said."""


@dataclass(frozen=True)
class Message:
    """One message."""

    kind: Kind
    session: bytes
    number: int
    body: bytes = b""

    def items(self) -> list[bytes]:
        """Cut the body into its items."""
        width = WIDTHS[self.kind]
        return [self.body[at : at + width] for at in range(0, len(self.body), width)]

    def encode(self) -> bytes:
        """Write the message."""
        return HEAD.pack(MAGIC, VERSION, self.kind, self.session, self.number) + self.body


def decode(data: bytes) -> Message:
    """Read a message, or refuse what is not one."""
    if len(data) < HEAD.size:
        raise MatchingError(f"expected at least {HEAD.size} bytes of a message, got {len(data)}")
    magic, version, kind, session, number = HEAD.unpack_from(data)
    if magic != MAGIC or version != VERSION:
        raise MatchingError(
            f"expected a matching message of version {VERSION}, got {magic!r} version {version}; "
            "use the same xvfl on both sides"
        )
    if kind not in WIDTHS:
        raise MatchingError(f"expected a kind from 1 to {max(WIDTHS)}, got {kind}")
    body = data[HEAD.size :]
    count, rest = divmod(len(body), WIDTHS[kind])
    most = MOST.get(kind, PART)
    if rest or count > most:
        raise MatchingError(
            f"{Kind(kind).name}: expected at most {most} items of {WIDTHS[kind]} bytes, "
            f"got {len(body)} bytes"
        )
    return Message(Kind(kind), session, number, body)
