"""Reply to matching requests for as long as a party runs, one session at a time."""

import threading
from collections.abc import Callable, Sequence

from xvfl.errors import MatchingError
from xvfl.matching.normalize import normalize_ids
from xvfl.matching.party_session import PartyMatch, PartySession
from xvfl.matching.session_checks import MAX_IDS
from xvfl.matching.session_messages import MessageKind, decode


class SessionResponder:
    """Replies to a coordinator's matching messages; calls `on_match` with each finished match."""

    def __init__(
        self,
        ids: Sequence[str],
        rule: str,
        on_match: Callable[[PartyMatch], None],
        n_threads: int | None = None,
        max_ids: int = MAX_IDS,
        check_allowed: Callable[[], None] = lambda: None,
        on_start: Callable[[int], None] = lambda labeled_ids: None,
    ) -> None:
        """Create a responder.

        `check_allowed` raises `MatchingError` to refuse a session. `on_start` receives the
        coordinator's number of ids before a session reveals anything.
        """
        normalize_ids(ids, rule, "ids")
        self._session_arguments = (ids, rule, n_threads, max_ids)
        self._on_match, self._check_allowed, self._on_start = on_match, check_allowed, on_start
        self._session: PartySession | None = None
        self._lock = threading.Lock()

    def answer(self, data: bytes) -> bytes:
        """Reply to a request; HELLO starts a new session and discards an unfinished one."""
        request = decode(data)
        with self._lock:
            if request.kind == MessageKind.HELLO:
                return self._start(data, request.number)
            if self._session is None:
                raise MatchingError(f"expected HELLO first, got {request.kind.name}: match again")
            try:
                reply = self._session.answer(data)
            except MatchingError:
                self._session = None
                raise
            if self._session.match is not None:
                self._on_match(self._session.match)
                self._session = None
            return reply

    def _start(self, data: bytes, labeled_ids: int) -> bytes:
        self._session = None
        self._check_allowed()
        session = PartySession(*self._session_arguments)
        reply = session.answer(data)
        self._on_start(labeled_ids)
        self._session = session
        return reply
