"""The parties of a coordinator that predicts: open sessions, requests with a deadline.

A party that does not answer in time is left out at once and costs nothing afterwards: a thread of
its own waits until it is connected and idle again, after a pause that grows with every fault, and
opens the session again (a circuit breaker). A request with less time than `patience` does not open
the circuit: the party is late for this request alone, and has the rest of the patience to reply.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, TimeoutError
from dataclasses import dataclass
from typing import Any, TypeVar

from xvfl.errors import PartyError, WireError, XVFLError
from xvfl.federation.remote_party import RemoteParty
from xvfl.wire.messages import ErrorReply, Hello, Message, OpenPrediction, PredictionOpened

Reply = TypeVar("Reply")
LogEvent = Callable[[dict[str, Any]], None]
POLL_S = 0.05
"""Seconds between two looks at a party that is left out."""
OPEN_TIMEOUT_S = 60.0
"""Seconds for a party to load its nets and to encode its prediction table."""
MIN_PAUSE_S, MAX_PAUSE_S = 0.1, 60.0
"""Pause after a fault: doubled with every further one."""
NOT_CONNECTED, NO_ANSWER = "not connected", "no answer in time"


@dataclass
class PooledParty:
    """A party and whether it answers."""

    remote: RemoteParty
    available: bool = False
    reason: str = NOT_CONNECTED
    """Why it is not available."""
    n_features: int = 0
    faults: int = 0
    """Consecutive faults."""
    retry_at: float = 0.0
    last_answer_s: float = 0.0
    """Seconds that its last answer took."""
    late: "Future[Message] | None" = None
    """Reply that the last request did not wait for."""
    late_until: float = 0.0
    """When it is left out if this reply has not arrived."""

    @property
    def name(self) -> str:
        """Name of the party."""
        return self.remote.name


class PartyPool:
    """Keeps a session open with every party that is connected.

    Parameters
    ----------
    parties
        The parties, in the order of the method's adapters.
    run
        The finished run whose weights the parties load.
    prepare
        Called before a session is opened with a party; raises if that is not possible.
    log_event
        Receives log events.
    patience
        Seconds that a party has for a reply before it is left out of further requests.
    """

    def __init__(
        self,
        parties: Sequence[RemoteParty],
        run: str,
        prepare: Callable[[str, Hello], None],
        log_event: LogEvent,
        patience: float,
    ) -> None:
        self.parties = [PooledParty(each) for each in parties]
        self._run, self._prepare, self._log_event = run, prepare, log_event
        self._patience = patience
        self._request_id, self._lock = 0, threading.Lock()
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._keep_open, args=(each,), name=each.name, daemon=True)
            for each in self.parties
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop opening sessions."""
        self._stop.set()
        for thread in self._threads:
            thread.join(1)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all parties."""
        return tuple(each.name for each in self.parties)

    def available(self, until: float = 0.0) -> list[int]:
        """Return the parties that can be asked; find those that left since the last request.

        Wait until this time (of `time.monotonic`) for parties that owe a late reply.
        """
        for party in self.parties:
            if party.late is not None:
                self._await_late_reply(party, party.late, until)
            if party.available and party.late is None:
                hello = party.remote.transport.hello()
                if hello is None or hello.instance_id != party.remote.instance_id:
                    self._leave_out(party, NOT_CONNECTED, fault=False)
        return [i for i, party in enumerate(self.parties) if party.available and party.late is None]

    def _await_late_reply(self, party: PooledParty, reply: "Future[Message]", until: float) -> None:
        try:
            reply.result(max(min(until, party.late_until) - time.monotonic(), 0.0))
            party.late = None
        except TimeoutError:
            if time.monotonic() >= party.late_until:
                self._leave_out(party, NO_ANSWER)
        except PartyError:
            self._leave_out(party, NO_ANSWER)

    def next_request_id(self) -> int:
        """Return a request id above all earlier ones, also those before a restart."""
        with self._lock:
            self._request_id = max(self._request_id + 1, time.time_ns() // 1_000_000)
            return self._request_id

    def request(
        self, requests: Mapping[int, Message], reply_type: type[Reply], deadline: float
    ) -> dict[int, Reply]:
        """Send each party its request; return the replies that arrive before the deadline."""
        started = time.monotonic()
        pending = {
            i: self.parties[i].remote.transport.request(message) for i, message in requests.items()
        }
        replies: dict[int, Reply] = {}
        for i, future in pending.items():
            party = self.parties[i]
            try:
                reply = future.result(max(deadline - time.monotonic(), 0.0))
            except TimeoutError:
                party.late, party.late_until = future, started + self._patience
                if time.monotonic() >= party.late_until:
                    self._leave_out(party, NO_ANSWER)
                continue
            except PartyError:
                self._leave_out(party, NO_ANSWER)
                continue
            if isinstance(reply, reply_type):
                party.faults, party.last_answer_s = 0, time.monotonic() - started
                replies[i] = reply
            elif isinstance(reply, ErrorReply):
                self._leave_out(party, f"it rejected the request: {reply.text}")
            else:
                self._leave_out(
                    party, f"expected {reply_type.__name__}, got {type(reply).__name__}"
                )
        return replies

    def reopen(self, name: str, reason: str) -> None:
        """Open the session with an available party once more, after `prepare`."""
        for party in self.parties:
            if party.name == name and party.available:
                self._leave_out(party, reason, fault=False)

    def leave_out(self, index: int, reason: str) -> None:
        """Leave a party out that sent an invalid reply."""
        self._leave_out(self.parties[index], reason)

    def _leave_out(self, party: PooledParty, reason: str, fault: bool = True) -> None:
        party.available, party.reason, party.late = False, reason, None
        pause = min(MIN_PAUSE_S * 2**party.faults, MAX_PAUSE_S) if fault else 0.0
        party.retry_at = time.monotonic() + pause
        party.faults += fault
        self._log_event({"event": "party_left_out", "party": party.name, "reason": reason})

    def _keep_open(self, party: PooledParty) -> None:
        while not self._stop.wait(POLL_S):
            # While a request is not answered, the party is not idle: this is None.
            hello = party.remote.transport.hello()
            if hello is None or time.monotonic() < party.retry_at:
                continue
            if party.available:
                if hello.instance_id == party.remote.instance_id:
                    continue
                self._leave_out(party, "it was restarted", fault=False)
            try:
                self._open(party, hello)
            except (XVFLError, TimeoutError) as error:
                self._leave_out(party, str(error) or NO_ANSWER)

    def _open(self, party: PooledParty, hello: Hello) -> None:
        self._prepare(party.name, hello)
        message = OpenPrediction(self.next_request_id(), self._run)
        reply = party.remote.transport.request(message).result(OPEN_TIMEOUT_S)
        if isinstance(reply, ErrorReply):
            raise WireError(f"it rejected the request: {reply.text}")
        if not isinstance(reply, PredictionOpened) or reply.n_features < 1:
            raise WireError("it sent an invalid reply to OpenPrediction")
        party.remote.instance_id, party.n_features = hello.instance_id, reply.n_features
        party.available, party.reason = True, ""
        self._log_event({"event": "party_available", "party": party.name})
