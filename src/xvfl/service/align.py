"""Match ids with the parties, at the coordinator.

`xvfl.matching` has the protocol; here its messages travel as `Match` and `Matched`.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import TypeVar

from xvfl.errors import MatchingError, PartyError, RunError
from xvfl.federation.remote_party import RemoteParty, request_all
from xvfl.matching import (
    CoordinatorAlignment,
    CoordinatorSession,
    TableFingerprint,
    load_coordinator_alignment,
)
from xvfl.service.config import MatchingConfig
from xvfl.service.matched_table import NEEDS_OPERATOR
from xvfl.system.event_log import (
    MATCHED,
    MATCHING_PROGRESS,
    MATCHING_STARTED,
    LogFunction,
    ProgressLog,
)
from xvfl.wire.messages import Done, End, Hello, Match, Matched, Message
from xvfl.wire.request_ids import next_request_id
from xvfl.wire.transport import Transport

REPLY_TIMEOUT_S, POLL_S = 300.0, 0.05
APPROVAL_POLL_S = 5.0
MAX_INTERRUPTIONS = 10
"""Of the matching with a party that restarts or does not reply."""
Reply = TypeVar("Reply", Matched, Done)


def _request(party: RemoteParty, message: Message, reply_type: type[Reply]) -> Reply:
    try:
        (reply,) = request_all([party], [message], reply_type)
    except PartyError as error:
        if error.fault == "away":
            raise
        raise MatchingError(str(error)) from error
    return reply


def _exchange(party: RemoteParty, body: bytes) -> bytes:
    """Send a request of the protocol and return the reply."""
    return _request(party, Match(next_request_id(), body), Matched).body


def match_parties(
    transports: Mapping[str, Transport],
    ids: Sequence[str],
    columns: Sequence[str],
    config: MatchingConfig,
    path: Path,
    log: LogFunction = lambda event: None,
    timeout_s: float = 600.0,
    end: bool = True,
    approval_s: float = 0.0,
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
    approval_s : float
        Seconds to wait for a party's operator, if matching needs one.

    """
    alignment = existing_alignment(path, ids, columns, config.rule)
    for name, transport in transports.items():
        party = RemoteParty(name, transport, REPLY_TIMEOUT_S)
        match, interruptions = None, count(1)
        waits, until = False, time.monotonic() + approval_s
        while match is None:
            instance_id = wait_for_party(name, transport, timeout_s).instance_id
            log({"event": MATCHING_STARTED, "party": name, "labeled_ids": len(ids)})
            session = CoordinatorSession(ids, config.rule, config.n_threads or None, config.max_ids)
            progress = ProgressLog(log, {"event": MATCHING_PROGRESS, "party": name})
            try:
                match = session.match(partial(_exchange, party), progress)
            except (MatchingError, PartyError) as error:
                # A restarted party does not know the session: match again from the start.
                hello = transport.hello()
                same_process = hello is not None and hello.instance_id == instance_id
                refused = isinstance(error, MatchingError) and same_process
                if refused and NEEDS_OPERATOR in str(error) and time.monotonic() < until:
                    if not waits:
                        event = {"event": "waiting_for_approval", "party": name}
                        log({**event, "reason": str(error)})
                    waits = True
                    time.sleep(APPROVAL_POLL_S)
                    continue
                if refused or next(interruptions) > MAX_INTERRUPTIONS:
                    raise MatchingError(f"matching with party {name!r}: {error}") from error
                log({"event": "matching_interrupted", "party": name, "reason": str(error)})
        alignment = replace(alignment, matches={**alignment.matches, name: match})
        alignment.save(path)
        if end:
            _request(party, End(next_request_id(), MATCHED), Done)
        rows = int((match.handles >= 0).sum())
        log({"event": MATCHED, "party": name, "rows": rows, "party_ids": match.party_ids})
    return alignment


def existing_alignment(
    path: Path, ids: Sequence[str], columns: Sequence[str], rule: str
) -> CoordinatorAlignment:
    """Load the matches with other parties if they belong to these labels."""
    if path.exists():
        with suppress(RunError):
            old = load_coordinator_alignment(path)
            now = TableFingerprint.of(columns, ids, old.labels.secret)
            if now == old.labels and old.rule == rule:
                return old
    return CoordinatorAlignment({}, rule, TableFingerprint.of(columns, ids))


def wait_for_party(name: str, transport: Transport, timeout_s: float) -> Hello:
    """Wait until a party is connected and idle."""
    deadline = time.monotonic() + timeout_s
    while (hello := transport.hello()) is None:
        if time.monotonic() > deadline:
            raise PartyError(
                f"party {name!r} did not connect within {timeout_s:.0f} s; start `xvfl align` or "
                "`xvfl party` there",
                (name,),
            )
        time.sleep(POLL_S)
    return hello
