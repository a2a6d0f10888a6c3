"""Match ids over the federation's lines: the coordinator asks each party, a party answers.

The sides of a session are in `xvfl.matching`; here its messages travel as `Match` and `Matched`.
"""

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import TimeoutError
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from xvfl.errors import MatchingError, PartyError, RunError, WireError
from xvfl.federation.endpoint import Endpoint, PartyRun
from xvfl.federation.run_settings import RunSettings
from xvfl.matching import (
    CoordinatorAlignment,
    CoordinatorMatch,
    CoordinatorSession,
    PartyAlignment,
    PartyMatch,
    Responder,
    TableFingerprint,
    load_coordinator_alignment,
)
from xvfl.service.config import MatchingConfig
from xvfl.wire.messages import End, ErrorReply, Hello, Match, Matched, Message, Release
from xvfl.wire.transport import Transport

ANSWER_S, LOOK_S = 300.0, 0.05
"""Seconds to wait for an answer, and between looks at who has come."""
Note = Callable[[dict[str, Any]], None]


class MatchingClient:
    """Carries a session's requests over one party's line."""

    def __init__(self, name: str, line: Transport) -> None:
        """Ask the party at the other end."""
        self._name, self._line = name, line
        # Counted from the clock: a coordinator that starts again is not taken for an old message.
        self._turn = time.time_ns() // 1_000_000

    def __call__(self, body: bytes) -> bytes:
        """Send a request and give the reply."""
        reply = self._ask(Match(self._next(), body))
        if not isinstance(reply, Matched):
            raise WireError(f"party {self._name!r}: expected Matched, got {type(reply).__name__}")
        return reply.body

    def end(self, reason: str) -> None:
        """Tell the party that this is all."""
        self._ask(End(self._next(), reason))

    def _next(self) -> int:
        self._turn += 1
        return self._turn

    def _ask(self, message: Message) -> Message:
        try:
            reply = self._line.exchange(message).result(ANSWER_S)
        except TimeoutError as error:
            raise PartyError(
                f"party {self._name!r} gave no answer for {ANSWER_S:.0f} s; "
                "look at its log and match again",
                (self._name,),
            ) from error
        if isinstance(reply, ErrorReply):
            raise MatchingError(f"party {self._name!r} refused: {reply.text}")
        return reply


def ask_parties(
    lines: Mapping[str, Transport],
    ids: Sequence[str],
    columns: Sequence[str],
    config: MatchingConfig,
    path: Path,
    note: Note = lambda event: None,
    wait_s: float = 600.0,
    then: str | None = "matched",
) -> CoordinatorAlignment:
    """Match the labelled ids with every party's; keep each as soon as it is known.

    What the file at `path` says of other parties stays, unless the labels have changed. A party
    is told that this is all, unless training comes `then`.
    """
    found = _begun(path, ids, columns, config.rule)
    for name, line in lines.items():
        _wait_for(name, line, wait_s)
        ask = MatchingClient(name, line)
        try:
            match = _match(ids, config, ask)
        except MatchingError as error:
            raise MatchingError(f"matching with party {name!r}: {error}") from error
        found = replace(found, matches={**found.matches, name: match})
        found.save(path)
        if then is not None:
            ask.end(then)
        held = int((match.handles >= 0).sum())
        note({"event": "matched", "party": name, "rows": held, "party_ids": match.party_ids})
    return found


def answering(
    name: str,
    ids: Sequence[str],
    columns: Sequence[str],
    config: MatchingConfig,
    path: Path,
    note: Note = lambda event: None,
) -> Endpoint:
    """Put a party behind an endpoint that matches ids and does nothing else."""
    answer = answers(ids, columns, config, path, note)
    hello = Hello(0, secrets.token_hex(8), False, len(ids), "", "")
    return Endpoint(hello, _no_run, _Nothing(), note, answer)


def answers(
    ids: Sequence[str],
    columns: Sequence[str],
    config: MatchingConfig,
    path: Path,
    note: Note = lambda event: None,
) -> Callable[[Match | Release], Message]:
    """Answer the matching messages of an endpoint; a finished match is kept at `path`."""
    mark = TableFingerprint.of(columns, ids)

    def keep(match: PartyMatch) -> None:
        PartyAlignment(match, config.rule, mark).save(path)
        note({"event": "matched", "rows": len(match.rows), "labeled_ids": match.labeled_ids})

    responder = Responder(ids, config.rule, keep, config.n_threads or None, config.max_ids)

    def answer(message: Match | Release) -> Message:
        if not isinstance(message, Match):
            raise WireError(f"expected Match, got {type(message).__name__}: only ids are matched")
        return Matched(message.turn, responder.answer(message.body))

    return answer


def _begun(
    path: Path, ids: Sequence[str], columns: Sequence[str], rule: str
) -> CoordinatorAlignment:
    """Take up what is known of other parties, if it is of these labels."""
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


def _match(ids: Sequence[str], config: MatchingConfig, ask: MatchingClient) -> CoordinatorMatch:
    session = CoordinatorSession(ids, config.rule, config.n_threads or None, config.max_ids)
    return session.match(ask)


def _wait_for(name: str, line: Transport, wait_s: float) -> None:
    until = time.monotonic() + wait_s
    while line.hello() is None:
        if time.monotonic() > until:
            raise PartyError(
                f"party {name!r} did not come within {wait_s:.0f} s; start `xvfl align` there",
                (name,),
            )
        time.sleep(LOOK_S)


def _no_run(settings: RunSettings, training: Tensor) -> PartyRun:
    raise WireError("this party only matches ids now; start `xvfl party` there to train")


class _Nothing:
    """Keeps no checkpoints."""

    def save(self, run: str, step: int, tensors: Mapping[str, Tensor], applied: int) -> None:
        """Refuse: there is no run."""
        raise WireError("this party only matches ids now")

    def newest(self, run: str, step: int) -> None:
        """Give none."""
        return
