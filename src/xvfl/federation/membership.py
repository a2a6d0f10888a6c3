"""Requirements of a run, and the state of each party in it."""

import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from xvfl.errors import Fault
from xvfl.federation.remote_party import RemoteParty
from xvfl.wire.messages import Done, Message
from xvfl.wire.payload import Payload

MAX_REJECTIONS = 5
"""Consecutive error replies after which a party is excluded."""
EXCLUDED = "excluded: "
"""Start of the reason that an excluded party receives."""
MAX_CONTRIBUTIONS = 2000
"""Number of recent updates that are counted separately; older ones are merged."""
BACKOFF_S = 0.5
"""Seconds per consecutive fault before a required party is asked to join again."""


@dataclass(frozen=True)
class RunTerms:
    """Requirements of a run."""

    run: str
    """Name of the run; the parties store their checkpoints under it."""
    settings: str
    """JSON of `RunSettings`."""
    width: int
    """Width of an embedding: of one party, row, view and member."""
    min_parties: int
    """Parties needed to continue."""
    training: Mapping[str, Tensor] = field(default_factory=dict)
    """Each party's handles of the training rows; see `Begin`."""
    join_timeout: float = 600.0
    """Seconds to wait for the needed parties."""
    payload: Payload = "float32"
    """Encoding of tensors; the same as in the settings."""
    rows: Mapping[str, int] = field(default_factory=dict)
    """Number of matched rows of each party, where it is known."""
    sends_gradients: bool = True
    """Whether gradients are sent to the parties; the same as in the settings."""
    members: int = 1
    """Number of members; the same as in the settings."""


class Contribution(NamedTuple):
    """Training batches of a party that one update finishes."""

    update: int
    """Number of the update."""
    batches: int
    rows: int


NOTHING = Contribution(0, 0, 0)


@dataclass
class Member:
    """A party and its state in the run."""

    party: RemoteParty
    instance_id: str = ""
    """The process that joined last."""
    present: bool = False
    row_status: Tensor | None = None
    min_rows: int = 1
    """Smallest number of rows that the party accepts in a training request."""
    exclusion_reason: str | None = None
    """Why the party may not join again; None = it may."""
    left_at: int = 0
    """The step at which it last left."""
    faults: int = 0
    """Consecutive faults, counted across restarts of the party's process."""
    rejections: int = 0
    """How many of them were error replies."""
    contributions: list[Contribution] = field(default_factory=list)
    """What the party took part in, by update; see `batches` and `trained_rows`."""
    ended: tuple[str, Future[Message]] | None = None
    """The process that was told the end of its part, and its reply."""
    _unfinished: Contribution = NOTHING
    _failed_batch: int = 0
    _failed_at: float = 0.0

    @property
    def batches(self) -> int:
        """Training batches whose update the party has applied."""
        return sum(each.batches for each in self._applied)

    @property
    def trained_rows(self) -> int:
        """Rows of the party in these batches, counted once per batch."""
        return sum(each.rows for each in self._applied)

    @property
    def _applied(self) -> list[Contribution]:
        return [each for each in self.contributions if each.update <= self.party.last_update]

    @property
    def absence(self) -> str | None:
        """Why the party is not present; None if it is."""
        if self.present:
            return None
        if self.exclusion_reason is not None:
            return EXCLUDED + self.exclusion_reason
        return f"offline since step {self.left_at}"

    @property
    def informed(self) -> bool:
        """Whether the party has confirmed the end of its part."""
        if self.ended is None or not self.ended[1].done() or self.ended[1].exception():
            return False
        return isinstance(self.ended[1].result(), Done)

    def record_fault(self, batch: int, fault: Fault) -> None:
        """Record a fault in a batch."""
        self.faults += 1
        self.rejections += fault == "refused"
        self._failed_batch, self._failed_at = batch, time.monotonic()

    def record_success(self, training: bool, rows: int) -> None:
        """Record a completed batch with this many rows of the party."""
        self.faults = self.rejections = 0
        if training:
            before = self._unfinished
            self._unfinished = Contribution(0, before.batches + 1, before.rows + rows)

    def record_update(self, number: int) -> None:
        """Record that an update was sent for the completed batches; it counts once applied."""
        if self._unfinished == NOTHING:
            return
        self.contributions.append(self._unfinished._replace(update=number))
        self._unfinished = NOTHING
        if len(self.contributions) >= 2 * MAX_CONTRIBUTIONS:
            old, kept = self.contributions[:-MAX_CONTRIBUTIONS], -MAX_CONTRIBUTIONS
            joined = [sum(each.batches for each in old), sum(each.rows for each in old)]
            self.contributions[:kept] = [Contribution(old[-1].update, *joined)]

    def resume_at(self, last_update: int) -> None:
        """Continue from a state of the party: later updates are lost to it."""
        self.party.last_update = last_update
        self._unfinished = NOTHING
        self.contributions = [each for each in self.contributions if each.update <= last_update]

    def is_backing_off(self, batch: int, needed: bool) -> bool:
        """Return whether the party still pauses: one batch per fault, or seconds if needed."""
        if not self.faults:
            return False
        if needed:
            return time.monotonic() < self._failed_at + BACKOFF_S * self.faults
        return batch < self._failed_batch + self.faults


@dataclass
class FaultCounts:
    """Faults so far, for monitoring."""

    departures: dict[str, int] = field(default_factory=dict)
    lost_updates: dict[str, int] = field(default_factory=dict)
    rejections: dict[str, int] = field(default_factory=dict)
    repeated_batches: int = 0
    """Batches started again because a party failed."""
