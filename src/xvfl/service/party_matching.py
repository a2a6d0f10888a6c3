"""Match ids with the coordinator, at a party: allow sessions, check claims, save the alignment.

A party matches its ids once. Another session needs its operator, because every session shows a
coordinator which of the ids that it submits are in the table.
"""

import secrets
from collections.abc import Callable, Sequence
from pathlib import Path

from xvfl.errors import MatchingError, RunError
from xvfl.federation.request_endpoint import RequestEndpoint
from xvfl.matching import (
    PartyAlignment,
    PartyMatch,
    SessionResponder,
    TableFingerprint,
    UnmatchedRowsError,
)
from xvfl.model.workflow import ENCODER
from xvfl.service.config import MatchingConfig
from xvfl.service.log import MATCHED, MATCHING_STARTED, LogFunction
from xvfl.system.files import append_jsonl, read_jsonl
from xvfl.wire.messages import Hello, Match, Matched

SESSIONS = "matching_sessions.jsonl"
"""The sessions that started since the operator last allowed matching and were not finished."""
MAX_SESSIONS = 10
"""Sessions that a coordinator can leave unfinished; each is a chance to guess `max_ids` ids."""
MATCHING_ONLY = "this party only matches ids now; start `xvfl party` there to train"
NEEDS_OPERATOR = "matching needs this party's operator"


class MatchingService:
    """Replies to a coordinator's matching requests, and saves the finished match."""

    def __init__(
        self,
        ids: Sequence[str],
        columns: Sequence[str],
        config: MatchingConfig,
        path: Path,
        log: LogFunction = lambda event: None,
        on_match: Callable[[PartyAlignment], None] = lambda alignment: None,
        again: bool = False,
    ) -> None:
        """Save the alignment at `path`, then pass it to `on_match`.

        `again` allows one match although `path` exists.
        """
        self._fingerprint = TableFingerprint.of(columns, ids)
        self._rule, self._path, self._log, self._on_match = config.rule, path, log, on_match
        self._again, self._sessions = again, path.with_name(SESSIONS)
        self._responder = SessionResponder(
            ids,
            config.rule,
            self._save,
            config.n_threads or None,
            config.max_ids,
            self._check_allowed,
            self._count_session,
        )

    def reply(self, message: Match) -> Matched:
        """Reply to one request."""
        try:
            return Matched(message.request_id, self._responder.answer(message.body))
        except UnmatchedRowsError as error:
            self._log(
                {
                    "event": "unmatched_rows_claimed",
                    "claimed": error.claimed,
                    "unmatched": error.unmatched,
                }
            )
            raise

    def allow_sessions(self) -> None:
        """Forget unfinished sessions; called when the operator starts matching."""
        self._sessions.unlink(missing_ok=True)

    def _check_allowed(self) -> None:
        if self._path.exists() and not self._again:
            reason = "ids are matched already; to match again, stop this party and run "
            reason += f"`xvfl align CONFIG --again`, or delete {self._path}"
        elif len(read_jsonl(self._sessions)) >= MAX_SESSIONS:
            reason = f"the coordinator left {MAX_SESSIONS} sessions unfinished; find out why, then "
            reason += f"run `xvfl align CONFIG`, or delete {self._sessions}"
        else:
            return
        self._log({"event": "matching_refused", "reason": reason})
        raise MatchingError(NEEDS_OPERATOR)

    def _count_session(self, labeled_ids: int) -> None:
        event = {"event": MATCHING_STARTED, "labeled_ids": labeled_ids}
        try:
            self._sessions.parent.mkdir(parents=True, exist_ok=True)
            append_jsonl(self._sessions, event)
        except OSError as error:
            raise RunError(f"{self._sessions}: cannot be written ({error.strerror})") from error
        self._log(event)

    def _save(self, match: PartyMatch) -> None:
        alignment = PartyAlignment(match, self._rule, self._fingerprint)
        alignment.save(self._path)
        self._path.with_name(ENCODER).unlink(missing_ok=True)
        self._again = False
        self.allow_sessions()
        self._on_match(alignment)
        self._log(
            {
                "event": MATCHED,
                "rows": len(match.rows),
                "found": match.found,
                "labeled_ids": match.labeled_ids,
            }
        )


def matching_endpoint(
    ids: Sequence[str],
    columns: Sequence[str],
    config: MatchingConfig,
    path: Path,
    log: LogFunction = lambda event: None,
    again: bool = False,
) -> RequestEndpoint:
    """Build the endpoint of a party that matches ids and does not train.

    The operator starts it, so it forgets the sessions that a coordinator left unfinished.
    """
    service = MatchingService(ids, columns, config, path, log, again=again)
    service.allow_sessions()

    hello = Hello(0, secrets.token_hex(8), False, len(ids), "", "")
    return RequestEndpoint(hello, log, {Match: service.reply}, MATCHING_ONLY)
