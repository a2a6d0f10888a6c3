"""Two sides tell each other the newest entries of their trails, and record what they are told.

A party asks soon after each new entry, and once a minute; the coordinator replies.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from xvfl.errors import InputError, WireError, XVFLError
from xvfl.trail.entries import TRAIL, EntryId
from xvfl.trail.trail_file import Trail
from xvfl.trail.verify import read_trail, verify_trail
from xvfl.wire.limited_log import LogEvent
from xvfl.wire.messages import Message, NewestEntries
from xvfl.wire.request_ids import EPOCH, next_request_id

POLL_S, REPEAT_S, TIMEOUT_S = 0.5, 60.0, 10.0
"""Seconds between two looks at one's own trail, between two exchanges without a new entry, and for
a reply."""
MAX_RECORDED, INTERVAL_S = 20, 60.0
"""Entries of a peer that are recorded within so many seconds, so that it cannot fill the disk."""
COORDINATOR = "coordinator"
Answer = Callable[[str, Message], Message]
"""Answers a request of a peer, by its name."""


class Acknowledgements:
    """The newest entries that a side's peers have told it.

    Parameters
    ----------
    folder : Path
        The side's state folder.
    side : str
        Its name.
    log : callable
        Receives `trail_differs`.
    """

    def __init__(self, folder: Path, side: str, log: LogEvent) -> None:
        self.trail, self.log = Trail(folder, side), log
        self._lock = threading.Lock()
        self._recorded: dict[str, tuple[EntryId, EntryId]] = {}
        self._asked: dict[str, int] = {}
        """The last request of each peer."""
        self._times: dict[str, deque[float]] = {}
        with suppress(InputError):
            found = verify_trail(read_trail(folder))
            self._recorded = {peer: each[-1][1:] for peer, each in found.recorded().items()}

    def greeting(
        self, peer: str, request_id: int, recorded: EntryId | None = None
    ) -> NewestEntries:
        """Return one's newest entry, and the newest entry of a peer that is recorded here."""
        recorded = recorded or self._recorded.get(peer, (EntryId(), EntryId()))[0]
        return NewestEntries(request_id, f"{self.trail.newest_id()} {recorded}")

    def answer_or(self, otherwise: Answer) -> Answer:
        """Return a function that answers `NewestEntries`, and leaves others to another one."""

        def answer(peer: str, message: Message) -> Message:
            if not isinstance(message, NewestEntries):
                return otherwise(peer, message)
            if self._is_late(peer, message.request_id):
                return self.greeting(peer, message.request_id)
            return self.greeting(peer, message.request_id, self.record(peer, message))

        return answer

    def record(self, peer: str, message: NewestEntries) -> EntryId:
        """Record the newest entry of a peer, and which of one's own it has; log what differs.

        Returns
        -------
        EntryId
            What to tell the peer: an entry that its trail has lost, or its newest one that is
            recorded.
        """
        ids = [each for text in message.ids.split() if (each := EntryId.parse(text))]
        if len(ids) != 2:
            raise WireError("NewestEntries: expected two entries: NUMBER-HASH NUMBER-HASH")
        told = ids[0], ids[1]
        with self._lock:
            before = self._recorded.get(peer, (EntryId(), EntryId()))
            if told == before or not self._may_record(peer):
                return before[0]
            lost = _contradicts(before[0], told[0])
            if problem := self._compare(peer, before, told, lost):
                self.log({"event": "trail_differs", "peer": peer, "reason": problem})
            # A full disk: the next exchange tries again.
            with suppress(OSError):
                self.trail.record_peer(peer, *told)
                self._recorded[peer] = told
            return before[0] if lost else self._recorded.get(peer, before)[0]

    def _compare(
        self, peer: str, before: tuple[EntryId, EntryId], told: tuple[EntryId, EntryId], lost: bool
    ) -> str:
        """Say what contradicts what was told before; empty if nothing does."""
        if lost:
            return (
                f"the trail of {peer} ends with entry {told[0]}, but it had told entry "
                f"{before[0]}: entries were cut off or replaced, or its folder was restored from "
                "a backup"
            )
        if told[1] == before[1] or self.trail.has(told[1]):
            return ""
        return (
            f"{peer} has recorded entry {told[1]} of this trail, which does not have it: "
            f"entries of {TRAIL} were changed, cut off or replaced, or this folder was restored "
            "from a backup; run `xvfl trail verify`"
        )

    def _is_late(self, peer: str, request_id: int) -> bool:
        """Return whether a later request of the same process was answered already.

        A request that its sender gave up has an older entry, which is no sign of a cut trail.
        """
        with self._lock:
            last = self._asked.get(peer, 0)
            if last // EPOCH == request_id // EPOCH and request_id < last:
                return True
            self._asked[peer] = request_id
            return False

    def _may_record(self, peer: str) -> bool:
        times, now = self._times.setdefault(peer, deque(maxlen=MAX_RECORDED)), time.monotonic()
        if len(times) == MAX_RECORDED and now < times[0] + INTERVAL_S:
            return False
        times.append(now)
        return True


def _contradicts(before: EntryId, now: EntryId) -> bool:
    """Return whether a trail that ended with one entry cannot end with the other one now."""
    return now.number < before.number or (now.number == before.number and now != before)


class Client(Protocol):
    """A party's connection to its coordinator."""

    @property
    def connected(self) -> bool:
        """Whether the coordinator has proved its certificate."""
        ...

    def call(self, message: Message, timeout: float) -> Message:
        """Send a request and return the reply."""
        ...


@contextmanager
def exchange_newest(
    folder: Path, side: str, client: Client, log: LogEvent, poll: float = POLL_S
) -> Iterator[None]:
    """Exchange newest entries with the coordinator in a thread, while a party is connected.

    Parameters
    ----------
    folder : Path
        The party's state folder.
    side : str
        Its name.
    client : Client
        Its connection.
    log : callable
        Receives `trail_differs`.
    poll : float, default=0.5
        Seconds between two looks at the trail.
    """
    own, stop = Acknowledgements(folder, side, log), threading.Event()
    thread = threading.Thread(
        target=_repeat, args=(own, client, stop, poll), name="trail", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(TIMEOUT_S)


def _repeat(own: Acknowledgements, client: Client, stop: threading.Event, poll: float) -> None:
    """Exchange newest entries after each change; after a failure, wait twice as long each time."""
    told, due, wait, problem = "", 0.0, poll, ""
    while not stop.wait(poll):
        if not client.connected:
            told, due, wait = "", 0.0, poll
            continue
        try:
            message, now = own.greeting(COORDINATOR, next_request_id()), time.monotonic()
            if now < due and (message.ids == told or wait > poll):
                continue
            wait = min(2 * wait, REPEAT_S)
            due = now + wait
            reply = client.call(message, TIMEOUT_S)
            if isinstance(reply, NewestEntries):
                own.record(COORDINATOR, reply)
                told, due, wait = message.ids, now + REPEAT_S, poll
        except (XVFLError, OSError, RuntimeError):
            # The connection broke, or the client's event loop ends.
            continue
        except Exception as error:
            if (text := repr(error)) != problem:
                problem = text
                own.log(
                    {"event": "internal_error", "reason": f"exchange of newest entries: {text}"}
                )
