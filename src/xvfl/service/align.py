"""Match ids between the coordinator and its parties.

`xvfl.matching` has the protocol; here its messages travel as `Match` and `Matched`.
"""

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import TimeoutError
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from xvfl.errors import MatchingError, PartyError, RunError, WireError
from xvfl.federation.endpoint import Endpoint, PartyRun
from xvfl.federation.run_settings import RunSettings
from xvfl.matching import (
    CoordinatorAlignment,
    CoordinatorSession,
    PartyAlignment,
    PartyMatch,
    SessionResponder,
    TableFingerprint,
    load_coordinator_alignment,
)
from xvfl.service.config import MatchingConfig
from xvfl.service.log import LogFunction
from xvfl.wire.messages import End, ErrorReply, Hello, Match, Matched, Message, Release
from xvfl.wire.transport import Transport

REPLY_TIMEOUT_S, POLL_S = 300.0, 0.05
MATCHED = "matched"
"""Event of a finished match; also the reason that a party receives if no training follows."""
MATCHING_ONLY = "this party only matches ids now; start `xvfl party` there to train"


class MatchingClient:
    """Sends the coordinator's matching requests to one party."""

    def __init__(self, name: str, transport: Transport) -> None:
        self._name, self._transport = name, transport
        # Initialize the counter from the clock so that it increases across restarts.
        self._request_id = time.time_ns() // 1_000_000

    def __call__(self, body: bytes) -> bytes:
        """Send a request of the protocol and return the reply."""
        reply = self._request(Match(self._next_request_id(), body))
        if not isinstance(reply, Matched):
            raise WireError(f"party {self._name!r}: expected Matched, got {type(reply).__name__}")
        return reply.body

    def end(self, reason: str) -> None:
        """Tell the party that no more requests follow."""
        self._request(End(self._next_request_id(), reason))

    def _next_request_id(self) -> int:
        self._request_id += 1
        return self._request_id

    def _request(self, message: Message) -> Message:
        try:
            reply = self._transport.request(message).result(REPLY_TIMEOUT_S)
        except TimeoutError as error:
            raise PartyError(
                f"party {self._name!r} did not reply within {REPLY_TIMEOUT_S:.0f} s; "
                "see its log and match again",
                (self._name,),
            ) from error
        if isinstance(reply, ErrorReply):
            raise MatchingError(f"party {self._name!r} rejected the request: {reply.text}")
        return reply


def match_parties(
    transports: Mapping[str, Transport],
    ids: Sequence[str],
    columns: Sequence[str],
    config: MatchingConfig,
    path: Path,
    log: LogFunction = lambda event: None,
    timeout_s: float = 600.0,
    end: bool = True,
) -> CoordinatorAlignment:
    """Match the labeled ids with the ids of every given party.

    Parameters
    ----------
    transports : mapping of str to Transport
        The parties to match with.
    ids, columns : sequence of str
        Ids and columns of the label table.
    config : MatchingConfig
        Rule and limits.
    path : Path
        The alignment file. It is saved after every party. Its matches with other parties are kept,
        unless the labels have changed.
    log : callable
        Receives an event for every party.
    timeout_s : float
        Seconds to wait for a party to connect.
    end : bool
        Tell each party that matching is complete; False if training follows.

    """
    alignment = _existing_alignment(path, ids, columns, config.rule)
    for name, transport in transports.items():
        _wait_for(name, transport, timeout_s)
        client = MatchingClient(name, transport)
        session = CoordinatorSession(ids, config.rule, config.n_threads or None, config.max_ids)
        try:
            match = session.match(client)
        except MatchingError as error:
            raise MatchingError(f"matching with party {name!r}: {error}") from error
        alignment = replace(alignment, matches={**alignment.matches, name: match})
        alignment.save(path)
        if end:
            client.end(MATCHED)
        rows = int((match.handles >= 0).sum())
        log({"event": MATCHED, "party": name, "rows": rows, "party_ids": match.party_ids})
    return alignment


class MatchingService:
    """Replies to a coordinator's matching requests, and saves each finished match."""

    def __init__(
        self,
        ids: Sequence[str],
        columns: Sequence[str],
        config: MatchingConfig,
        path: Path,
        log: LogFunction = lambda event: None,
        on_match: Callable[[PartyAlignment], None] = lambda alignment: None,
    ) -> None:
        """Save the alignment at `path`, then pass it to `on_match`."""
        self._fingerprint = TableFingerprint.of(columns, ids)
        self._rule, self._path, self._log, self._on_match = config.rule, path, log, on_match
        self._responder = SessionResponder(
            ids, config.rule, self._save, config.n_threads or None, config.max_ids
        )

    def reply(self, message: Match) -> Matched:
        """Reply to one request."""
        return Matched(message.request_id, self._responder.answer(message.body))

    def _save(self, match: PartyMatch) -> None:
        alignment = PartyAlignment(match, self._rule, self._fingerprint)
        alignment.save(self._path)
        self._on_match(alignment)
        rows, labeled_ids = len(match.rows), match.labeled_ids
        self._log({"event": MATCHED, "rows": rows, "labeled_ids": labeled_ids})


def matching_endpoint(
    ids: Sequence[str],
    columns: Sequence[str],
    config: MatchingConfig,
    path: Path,
    log: LogFunction = lambda event: None,
) -> Endpoint:
    """Build the endpoint of a party that matches ids and does not train."""
    responder = MatchingService(ids, columns, config, path, log)

    def reply(message: Match | Release) -> Message:
        if not isinstance(message, Match):
            raise WireError(f"{type(message).__name__}: {MATCHING_ONLY}")
        return responder.reply(message)

    hello = Hello(0, secrets.token_hex(8), False, len(ids), "", "")
    return Endpoint(hello, _reject_run, _NoCheckpoints(), log, reply)


def _existing_alignment(
    path: Path, ids: Sequence[str], columns: Sequence[str], rule: str
) -> CoordinatorAlignment:
    """Load the matches with other parties if they belong to these labels."""
    if path.exists():
        try:
            old = load_coordinator_alignment(path)
        except RunError:
            old = None
        if old is not None:
            now = TableFingerprint.of(columns, ids, old.labels.secret)
            if now == old.labels and old.rule == rule:
                return old
    return CoordinatorAlignment({}, rule, TableFingerprint.of(columns, ids))


def _wait_for(name: str, transport: Transport, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while transport.hello() is None:
        if time.monotonic() > deadline:
            raise PartyError(
                f"party {name!r} did not connect within {timeout_s:.0f} s; "
                "start `xvfl align` there",
                (name,),
            )
        time.sleep(POLL_S)


def _reject_run(settings: RunSettings, training: Tensor) -> PartyRun:
    raise WireError(f"Begin: {MATCHING_ONLY}")


class _NoCheckpoints:
    """Checkpoint store of a party that does not train."""

    def save(self, run: str, step: int, tensors: Mapping[str, Tensor], last_update: int) -> None:
        """Reject: there is no run."""
        raise WireError(MATCHING_ONLY)

    def newest(self, run: str, step: int) -> None:
        """Return no checkpoint."""
        return
