"""A party's table with its alignment: ids, private matching, and what the party reports of it.

A party matches its ids once. Another session needs its operator, because every session shows a
coordinator which of the ids that it submits are in the table.
"""

import secrets
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Literal

from xvfl.data.images import Images
from xvfl.data.sources import Source, source_columns, source_ids
from xvfl.errors import InputError, MatchingError, RunError
from xvfl.federation.request_endpoint import RequestEndpoint
from xvfl.matching import (
    PartyAlignment,
    PartyMatch,
    SessionResponder,
    TableFingerprint,
    UnmatchedRowsError,
    load_party_alignment,
)
from xvfl.model.workflow import ENCODER
from xvfl.service.config import ALIGNMENT, MatchingConfig
from xvfl.service.party_inputs import PartyInputs
from xvfl.system.event_log import MATCHED, MATCHING_STARTED, LogFunction
from xvfl.system.files import append_jsonl, read_jsonl
from xvfl.trail.approvals import Approvals, Kind
from xvfl.wire.messages import Hello, Match, Matched

Purpose = Literal["training", "prediction"]
SESSIONS = "matching_sessions.jsonl"
"""The sessions that started since the operator last allowed matching and were not finished."""
MAX_SESSIONS = 10
"""Sessions that a coordinator can leave unfinished; each is a chance to guess `max_ids` ids."""
MATCHING_ONLY = "this party only matches ids now; start `xvfl party` there to train"
NEEDS_OPERATOR = "matching needs this party's operator"


class MatchedTable:
    """The table that a party trains on, or opens for prediction.

    Parameters
    ----------
    source
        The table.
    path
        The alignment file.
    config
        Rule and limits of private id matching.
    log
        Receives log events.
    on_match
        Called after ids were matched.
    purpose
        What the table is for.
    again
        Allow one match although the alignment file exists; the file is not read.
    approvals
        Where to ask the operator for another match.
    """

    def __init__(
        self,
        source: Source,
        path: Path,
        config: MatchingConfig,
        log: LogFunction = lambda event: None,
        on_match: Callable[[], None] = lambda: None,
        purpose: Purpose = "training",
        again: bool = False,
        approvals: Approvals | None = None,
    ) -> None:
        self._approvals = approvals
        self._kind: Kind = "match" if purpose == "training" else "match-prediction"
        self.ids, self._columns = source_ids(source), source_columns(source)
        self._image, self._path, self._purpose = isinstance(source, Images), path, purpose
        known = path.is_file() and not again
        self._alignment = load_party_alignment(path) if known else None
        self._process_id, self._on_match = secrets.token_hex(8), on_match
        self._rule, self._log, self._again = config.rule, log, again
        self._sessions = path.with_name(SESSIONS)
        self._responder = SessionResponder(
            self.ids,
            config.rule,
            self._save,
            config.n_threads or None,
            config.max_ids,
            self._check_allowed,
            self._count_session,
        )

    @property
    def match(self) -> PartyMatch | None:
        """The matched rows; None before ids are matched."""
        return self._alignment.match if self._alignment else None

    def check(self, where: str) -> None:
        """Raise `InputError` if the table has changed since its ids were matched."""
        if self._alignment is not None:
            self._alignment.table.check(self._columns, self.ids, where)

    def forget(self) -> None:
        """Delete the alignment, so that ids are matched again."""
        self._alignment = None
        self._path.unlink(missing_ok=True)

    def hello(self) -> Hello:
        """Describe this party to the coordinator."""
        match, columns = self.match, ""
        rows, session = (len(match.rows), match.session.hex()) if match else (0, "")
        if self._purpose == "training":
            columns = blake2b(repr(sorted(self._columns)).encode(), digest_size=8).hexdigest()
        return Hello(0, self._process_id, self._image, rows, columns, session, self._purpose)

    def reply(self, message: Match) -> Matched:
        """Reply to one request."""
        try:
            return Matched(message.request_id, self._responder.answer(message.body))
        except UnmatchedRowsError as error:
            event = {"event": "unmatched_rows_claimed", "claimed": error.claimed}
            self._log({**event, "unmatched": error.unmatched})
            raise

    def allow_sessions(self) -> None:
        """Forget unfinished sessions; called when the operator starts matching."""
        self._sessions.unlink(missing_ok=True)

    def _check_allowed(self) -> None:
        asks = self._approvals
        again = self._again or (asks is not None and asks.granted(self._kind))
        if self._path.exists() and not again:
            reason = "ids are matched already; to match again, run `xvfl approve CONFIG`, or stop "
            reason += f"this party and run `xvfl align CONFIG --again`, or delete {self._path}"
        elif len(read_jsonl(self._sessions)) >= MAX_SESSIONS:
            reason = f"the coordinator left {MAX_SESSIONS} sessions unfinished; find out why, then "
            reason += f"run `xvfl align CONFIG`, or delete {self._sessions}"
        else:
            return
        if asks is not None and again:
            # What was approved is used up.
            asks.use(self._kind)
        # A coordinator that waits for the approval asks again and again.
        if asks is None or asks.ask(self._kind, reason.partition(";")[0]):
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
        fingerprint = TableFingerprint.of(self._columns, self.ids)
        self._alignment = PartyAlignment(match, self._rule, fingerprint)
        self._alignment.save(self._path)
        self._path.with_name(ENCODER).unlink(missing_ok=True)
        self._again = False
        if self._approvals is not None:
            self._approvals.use(self._kind)
        self.allow_sessions()
        self._on_match()
        rows = len(match.rows)
        self._log({"event": MATCHED, "rows": rows, "labeled_ids": match.labeled_ids})


def load_matched_table(
    inputs: PartyInputs,
    log: LogFunction = lambda event: None,
    on_match: Callable[[], None] = lambda: None,
    ask: bool = False,
) -> MatchedTable:
    """Load a party's alignment; reject a table that has changed since its ids were matched.

    With `ask`, the operator may approve that a changed table is matched again.
    """
    approvals, matching = Approvals(inputs.folder.path, log), inputs.config.matching

    def load(again: bool) -> MatchedTable:
        path = inputs.folder / ALIGNMENT
        return MatchedTable(
            inputs.source, path, matching, log, on_match, again=again, approvals=approvals
        )

    table = load(again=False)
    try:
        table.check(f"party {inputs.name!r}")
    except InputError as error:
        if not (ask and approvals.granted("match")):
            if ask:
                approvals.ask("match", str(error))
            raise
        return load(again=True)
    return table


def matching_endpoint(
    source: Source,
    path: Path,
    config: MatchingConfig,
    log: LogFunction = lambda event: None,
    again: bool = False,
) -> RequestEndpoint:
    """Build the endpoint of a party that matches ids and does not train.

    The operator starts it, so it forgets the sessions that a coordinator left unfinished.
    """
    table = MatchedTable(source, path, config, log, again=again)
    table.allow_sessions()
    hello = Hello(0, secrets.token_hex(8), False, len(table.ids), "", "")
    return RequestEndpoint(hello, log, {Match: table.reply}, MATCHING_ONLY)
