"""What a run demands of its parties, and what it knows of each."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from xvfl.federation.ask import Peer
from xvfl.wire.packing import Payload

MOST_REFUSALS = 5
"""Refusals in succession after which a party is kept out."""
PAUSE_S = 0.5
"""Seconds before a party that refused, and is needed, is asked again; longer each time."""


@dataclass(frozen=True)
class Terms:
    """What a run demands of its parties."""

    run: str
    """Names the run; the parties' checkpoints bear it."""
    settings: str
    """JSON; see `settings.Settings`."""
    width: int
    """Width of what a party sends for each row and view."""
    minimum: int
    """Parties needed to go on."""
    training: Mapping[str, Tensor] = field(default_factory=dict)
    """Each party's handles of the rows to train on; see `Begin`."""
    patience_s: float = 600.0
    """Seconds to wait for them."""
    payload: Payload = "float32"
    """How tensors travel; the settings say the same."""
    rows: Mapping[str, int] = field(default_factory=dict)
    """How many rows were matched with each party, where that is known."""


@dataclass
class Member:
    """A party, and what is known of its part in the run."""

    peer: Peer
    began: str = ""
    """The process that last began."""
    present: bool = False
    holdings: Tensor | None = None
    barred: str | None = None
    """Why it may not come back."""
    left_at: int = 0
    """The step at which it last left."""
    refusals: int = 0
    """In succession, of one process."""
    _refused_in: int = 0
    _refused_at: float = 0.0

    def refused(self, batch: int) -> None:
        """Take note that it refused a question of a batch."""
        self.refusals += 1
        self._refused_in, self._refused_at = batch, time.monotonic()

    def rests(self, batch: int, needed: bool) -> bool:
        """Say whether it sits out: a batch for every refusal, or where it is needed a moment."""
        if not self.refusals or self.peer.restarted():
            return False
        if needed:
            return time.monotonic() < self._refused_at + PAUSE_S * self.refusals
        return batch < self._refused_in + self.refusals


@dataclass
class Losses:
    """What went wrong so far, counted for whoever watches."""

    left: dict[str, int] = field(default_factory=dict)
    updates: dict[str, int] = field(default_factory=dict)
    refusals: dict[str, int] = field(default_factory=dict)
    batches: int = 0
    """Batches begun again."""
