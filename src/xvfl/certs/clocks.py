"""Compare the clocks of peers with this machine's when they connect.

Nothing depends on the difference but dates: those of certificates, terms and budgets.
"""

import math
import time

from xvfl.errors import WireError
from xvfl.wire.limited_log import LimitedLog, LogEvent

MAX_AHEAD_S = 60.0
"""A larger difference is a warning."""


def clock_warning(ahead: float, peer: str, own: str) -> str:
    """Describe a difference of two clocks; empty if it is small."""
    if abs(ahead) <= MAX_AHEAD_S:
        return ""
    where = "ahead of" if ahead > 0 else "behind"
    return f"{peer} is {abs(ahead):,.0f} s {where} {own}; correct the one that is wrong"


class PeerClocks:
    """Seconds that the clocks of peers are ahead of this machine's; negative if they are behind."""

    def __init__(self, log_event: LogEvent) -> None:
        self._log = LimitedLog(log_event)
        self.ahead: dict[str, float] = {}
        """By party; at a party, that of the coordinator by an empty name."""
        self._warnings: dict[str, str] = {}

    def compare(self, party: str, sent: float) -> None:
        """Compare a clock by the time in a message that has just arrived."""
        if not math.isfinite(sent):
            raise WireError(f"expected the time of the sender's clock, got {sent}")
        ahead = round(sent - time.time(), 1)
        peer, own = f"the clock of party {party!r}", "this coordinator's"
        if not party:
            peer, own = "the coordinator's clock", "this party's"
        self.ahead[party], self._warnings[party] = ahead, clock_warning(ahead, peer, own)
        event = {"event": "clock_compared", **({"party": party} if party else {})}
        warning = {"warning": self._warnings[party]} if self._warnings[party] else {}
        self._log({**event, "ahead_s": ahead, **warning})

    @property
    def warning(self) -> str:
        """What is wrong with clocks; empty if nothing is."""
        return "; ".join(filter(None, list(self._warnings.values())))
