"""A party that answers matching for as long as it runs: one session at a time, each begun anew."""

import threading
from collections.abc import Callable, Sequence

from xvfl.errors import MatchingError
from xvfl.matching.normalise import normalised
from xvfl.matching.party_session import PartyMatch, PartySession
from xvfl.matching.session_checks import MOST_IDS
from xvfl.matching.session_messages import Kind, decode


class Responder:
    """Answers a coordinator's matching messages; `keep` is given each finished match."""

    def __init__(
        self,
        ids: Sequence[str],
        rule: str,
        keep: Callable[[PartyMatch], None],
        workers: int | None = None,
        max_ids: int = MOST_IDS,
    ) -> None:
        normalised(ids, rule, "ids")
        self._given = (ids, rule, workers, max_ids)
        self._keep = keep
        self._session: PartySession | None = None
        self._lock = threading.Lock()

    def answer(self, data: bytes) -> bytes:
        """Reply to a request; HELLO begins a new session and gives up one that is under way."""
        kind = decode(data).kind
        with self._lock:
            if kind == Kind.HELLO:
                self._session = PartySession(*self._given)
            if self._session is None:
                raise MatchingError(f"expected HELLO first, got {kind.name}: match again")
            reply = self._session.answer(data)
            if self._session.match is not None:
                self._keep(self._session.match)
                self._session = None
            return reply
