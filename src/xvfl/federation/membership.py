"""What a run demands of its parties, and what it knows of each."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from xvfl.errors import Fault
from xvfl.federation.remote_party import RemoteParty
from xvfl.wire.payload import Payload

MOST_REFUSALS = 5
"""Refusals in succession after which a party is kept out."""
PAUSE_S = 0.5
"""Seconds before a party that failed, and is needed, is asked again; longer each time."""


@dataclass(frozen=True)
class RunTerms:
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

    peer: RemoteParty
    began: str = ""
    """The process that last began."""
    present: bool = False
    holdings: Tensor | None = None
    barred: str | None = None
    """Why it may not come back."""
    left_at: int = 0
    """The step at which it last left."""
    faults: int = 0
    """In succession, whichever process made them: one that starts again is no other party."""
    refusals: int = 0
    """Those among them that were refusals."""
    _failed_in: int = 0
    _failed_at: float = 0.0

    def failed(self, batch: int, fault: Fault) -> None:
        """Take note that it failed in a batch."""
        self.faults += 1
        self.refusals += fault == "refused"
        self._failed_in, self._failed_at = batch, time.monotonic()

    def succeeded(self) -> None:
        """Take note that it went through a batch."""
        self.faults = self.refusals = 0

    def rests(self, batch: int, needed: bool) -> bool:
        """Say whether it sits out: a batch for every fault, or where it is needed a moment."""
        if not self.faults:
            return False
        if needed:
            return time.monotonic() < self._failed_at + PAUSE_S * self.faults
        return batch < self._failed_in + self.faults


@dataclass
class FaultCounts:
    """What went wrong so far, counted for whoever watches."""

    left: dict[str, int] = field(default_factory=dict)
    updates: dict[str, int] = field(default_factory=dict)
    refusals: dict[str, int] = field(default_factory=dict)
    batches: int = 0
    """Batches begun again."""
