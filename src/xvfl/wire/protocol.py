"""Versions of the protocol: which ones this side speaks, and which one a connection uses.

Each frame begins with its version. The two sides tell each other their versions in `Challenge` and
`Proof`, which are always frames of version `BASE`, and use the highest common one from `Hello` on.
Files and what is signed are encoded in version `BASE`, so that they stay readable and valid.

To change messages, raise `NEWEST` and add its first release to `RELEASES`. A new field gets a
default and `metadata={"since": NEWEST}`: it is left out of frames of earlier versions. A new
message is sent only to peers whose version has it. Raise `OLDEST` to refuse older peers.
"""

from dataclasses import dataclass

from xvfl.errors import WireError
from xvfl.version import VERSION
from xvfl.wire.texts import Code

BASE = 4
"""Version of handshakes, files and signed messages; it never changes."""
OLDEST, NEWEST = 4, 4
"""Versions that this side speaks."""
RELEASES = {4: "0.4"}
"""First release of xvfl with each version."""


class ProtocolError(WireError):
    """The two sides have no common version of the protocol."""


@dataclass(frozen=True)
class Side:
    """What one side of a connection speaks."""

    oldest: int
    newest: int
    release: Code = ""
    """Release of xvfl that it runs; empty if it is not known."""

    def __str__(self) -> str:
        many = f"{self.oldest} to {self.newest}" if self.newest > self.oldest else str(self.oldest)
        return f"{many} (xvfl {self.release})" if self.release else many


def own_side() -> Side:
    """Return what this side speaks."""
    return Side(OLDEST, NEWEST, VERSION)


def side_of_version(version: int) -> Side:
    """Describe a peer of which only the version of a frame is known."""
    later = [release for number, release in sorted(RELEASES.items()) if number > version]
    return Side(version, version, f"before {later[0]}" if later else "")


def agree(peer: Side) -> int:
    """Return the highest version that both sides speak; raise if there is none."""
    own = own_side()
    version = min(own.newest, peer.newest)
    if version < max(own.oldest, peer.oldest):
        raise ProtocolError(no_common_version(peer))
    return version


def no_common_version(peer: Side) -> str:
    """Say which of the two sides to update, in words that suit both of them."""
    behind, ahead = sorted((own_side(), peer), key=lambda side: side.newest)
    needed = RELEASES.get(ahead.oldest, ahead.release)
    package = f"xvfl[federated]>={needed}" if needed else "xvfl[federated]"
    return (
        f"no common protocol version: one side speaks {behind}, the other {ahead}. Update the side "
        f"with protocol version {behind.newest} and start it again: "
        f"pip install --upgrade '{package}'"
    )
