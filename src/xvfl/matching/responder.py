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
    ) -> None:
        normalize_ids(ids, rule, "ids")
        self._session_arguments = (ids, rule, n_threads, max_ids)
        self._on_match = on_match
        self._session: PartySession | None = None
        self._lock = threading.Lock()

    def answer(self, data: bytes) -> bytes:
        """Reply to a request; HELLO starts a new session and discards an unfinished one."""
        kind = decode(data).kind
        with self._lock:
            if kind == MessageKind.HELLO:
                self._session = PartySession(*self._session_arguments)
            if self._session is None:
                raise MatchingError(f"expected HELLO first, got {kind.name}: match again")
            reply = self._session.answer(data)
            if self._session.match is not None:
                self._on_match(self._session.match)
                self._session = None
            return reply
