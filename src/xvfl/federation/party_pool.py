"""The parties of a coordinator that predicts: open sessions, requests with a deadline.

A party that does not answer in time is left out at once and costs nothing afterwards: a thread of
its own waits until it is connected and idle again, after a pause that grows with every fault, and
opens the session again (a circuit breaker). A request with less time than `patience` does not open
the circuit: the party is late for this request alone, and has the rest of the patience to reply.
"""

import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, TimeoutError
from dataclasses import dataclass
from typing import TypeVar

from xvfl.errors import PartyError, WireError, XVFLError
from xvfl.federation.remote_party import RemoteParty
from xvfl.wire.limited_log import LogEvent
from xvfl.wire.messages import ErrorReply, Hello, Message, OpenPrediction, PredictionOpened
from xvfl.wire.request_ids import next_request_id

Reply = TypeVar("Reply")
POLL_S = 0.05
"""Seconds between two looks at a party that is left out."""
OPEN_TIMEOUT_S = 60.0
"""Seconds for a party to load its nets and to encode its prediction table."""
MIN_PAUSE_S, MAX_PAUSE_S = 0.1, 60.0
"""Pause after a fault: doubled with every further one."""
NOT_CONNECTED, NO_ANSWER = "not connected", "no answer in time"
DISCONNECTED, RESTARTED = "its connection broke", "it was restarted"
REJECTED, INVALID = "it rejected the request", "it sent an invalid reply"
NOT_OPENED = "its prediction table is not open"


@dataclass
class PooledParty:
    """A party and whether it answers."""

    remote: RemoteParty
    available: bool = False
    reason: str = NOT_CONNECTED
    """Why it is not available: one of the constants above."""
    detail: str = ""
    """What the log says besides; it may name a run."""
    n_features: int = 0
    faults: int = 0
    """Consecutive faults."""
    retry_at: float = 0.0
    last_answer_s: float = 0.0
    """Seconds that its last answer took."""
    waited_s: float = 0.0
    """Seconds that the last request without an answer waited."""
    last_reply: "Future[Message] | None" = None
    """Reply to the last request."""
    late: "Future[Message] | None" = None
    """Reply that the last request did not wait for."""
    late_until: float = 0.0
    """When it is left out if this reply has not arrived."""

    @property
    def name(self) -> str:
        """Name of the party."""
        return self.remote.name

    @property
    def absence(self) -> str:
        """Why it did not take part in the last exchange, for callers."""
        if self.waited_s and self.reason in ("", NO_ANSWER):
            return f"no answer within {self.waited_s:.2g} s"
        return self.reason or NO_ANSWER

    @property
    def diagnosis(self) -> str:
        """Why it is not available, for operators."""
        return f"{self.reason}: {self.detail}" if self.detail else self.reason


class PartyPool:
    """Keeps a session open with every party that is connected.

    Parameters
    ----------
    parties
        The parties, in the order of the method's adapters.
    runs
        For each party, the finished run or the version of its encoder whose weights it loads.
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
        runs: Mapping[str, str],
        prepare: Callable[[str, Hello], None],
        log_event: LogEvent,
        patience: float,
    ) -> None:
        self.parties: list[PooledParty] = []
        self._runs, self._prepare, self._log_event = runs, prepare, log_event
        self._patience = patience
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self.use_parties(parties, runs)

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
            self._leave_out(party, DISCONNECTED)

    def request(
        self, requests: Mapping[int, Message], reply_type: type[Reply], deadline: float
    ) -> dict[int, Reply]:
        """Send each party its request; return the replies that arrive before the deadline."""
        started = time.monotonic()
        for i, message in requests.items():
            party = self.parties[i]
            # Not done before the request is sent: the party is not idle from here on.
            party.last_reply = Future()
            party.last_reply = party.remote.transport.request(message)
        replies: dict[int, Reply] = {}
        for i in requests:
            party = self.parties[i]
            future = party.last_reply
            assert future is not None
            try:
                reply = future.result(max(deadline - time.monotonic(), 0.0))
            except TimeoutError:
                party.late, party.late_until = future, started + self._patience
                party.waited_s = time.monotonic() - started
                if time.monotonic() >= party.late_until:
                    self._leave_out(party, NO_ANSWER)
                continue
            except PartyError:
                self._leave_out(party, DISCONNECTED)
                continue
            if isinstance(reply, reply_type):
                party.faults, party.last_answer_s = 0, time.monotonic() - started
                replies[i] = reply
            elif isinstance(reply, ErrorReply):
                self._leave_out(party, REJECTED, reply.text)
            else:
                text = f"expected {reply_type.__name__}, got {type(reply).__name__}"
                self._leave_out(party, INVALID, text)
        return replies

    def reopen(self, name: str, reason: str) -> None:
        """Open the session with an available party once more, after `prepare`."""
        for party in self.parties:
            if party.name == name and party.available:
                self._leave_out(party, reason, fault=False)

    def use_parties(self, parties: Sequence[RemoteParty], runs: Mapping[str, str]) -> None:
        """Ask these parties from now on; open the sessions of those that load other weights.

        No request may be open.
        """
        known = {each.name: each for each in self.parties}
        before, self._runs = self._runs, runs
        self.parties = [known.get(each.name) or PooledParty(each) for each in parties]
        for party in self.parties:
            if party.name not in known:
                thread = threading.Thread(
                    target=self._keep_open, args=(party,), name=party.name, daemon=True
                )
                self._threads.append(thread)
                thread.start()
            elif before.get(party.name) != runs[party.name]:
                self.reopen(party.name, "it loads another version of its encoder")

    def reject_reply(self, index: int, error: WireError) -> None:
        """Leave a party out that sent an invalid reply."""
        self._leave_out(self.parties[index], INVALID, str(error))

    def _leave_out(
        self, party: PooledParty, reason: str, detail: str = "", fault: bool = True
    ) -> None:
        party.available, party.late = False, None
        party.reason, party.detail = reason, detail
        pause = min(MIN_PAUSE_S * 2**party.faults, MAX_PAUSE_S) if fault else 0.0
        party.retry_at = time.monotonic() + pause
        party.faults += fault
        self._log_event({"event": "party_left_out", "party": party.name, "reason": party.diagnosis})

    def _keep_open(self, party: PooledParty) -> None:
        while not self._stop.wait(POLL_S) and party in self.parties:
            try:
                self._look_at(party)
            except TimeoutError:
                party.waited_s = OPEN_TIMEOUT_S
                self._leave_out(party, NO_ANSWER)
            except XVFLError as error:
                self._leave_out(party, NOT_OPENED, str(error))
            except Exception as error:
                # Without this thread, the session would never be opened again.
                self._log_event({"event": "internal_error", "traceback": traceback.format_exc()})
                self._leave_out(party, NOT_OPENED, repr(error))

    def _look_at(self, party: PooledParty) -> None:
        """Open the session of a party that is connected; leave it out if it is not any more."""
        # While a request is not answered, the party is not idle, and its Hello is None.
        last = party.last_reply
        idle = last is None or last.done()
        hello = party.remote.transport.hello()
        if hello is None:
            # If nothing was requested since the first line, it is not busy.
            if party.available and idle and party.last_reply is last:
                self._leave_out(party, NOT_CONNECTED, fault=False)
            return
        if party.available and hello.instance_id != party.remote.instance_id:
            self._leave_out(party, RESTARTED, fault=False)
        if not party.available and time.monotonic() >= party.retry_at:
            self._open(party, hello)

    def _open(self, party: PooledParty, hello: Hello) -> None:
        self._prepare(party.name, hello)
        message = OpenPrediction(next_request_id(), self._runs[party.name])
        reply = party.remote.transport.request(message).result(OPEN_TIMEOUT_S)
        if isinstance(reply, ErrorReply):
            raise WireError(f"it rejected the request: {reply.text}")
        if not isinstance(reply, PredictionOpened) or reply.n_features < 1:
            raise WireError("it sent an invalid reply to OpenPrediction")
        party.remote.instance_id, party.n_features = hello.instance_id, reply.n_features
        party.available, party.reason, party.detail, party.waited_s = True, "", "", 0.0
        self._log_event({"event": "party_available", "party": party.name})
