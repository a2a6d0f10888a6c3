"""A party's side of a session; the package's docstring describes the protocol."""

import os
from collections.abc import Generator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xvfl.errors import MatchingError
from xvfl.matching.group import PROOF_BYTES, ThreadMap
from xvfl.matching.normalize import normalize_ids
from xvfl.matching.oprf import OprfServer, hash_domain
from xvfl.matching.session_checks import (
    MAX_IDS,
    SessionItems,
    check_count,
    check_message,
    parts,
    session_id,
)
from xvfl.matching.session_messages import (
    NONCE_BYTES,
    PART_SIZE,
    MatchingMessage,
    MessageKind,
    decode,
)

CLAIM = np.dtype([("position", "<u4"), ("proof", "V", PROOF_BYTES)])
"""An item of MATCHED."""


class UnmatchedRowsError(MatchingError):
    """The coordinator claimed rows without a proof that it has their ids."""

    def __init__(self, claimed: int, unmatched: int) -> None:
        # The coordinator receives this text: it does not contain the number of unmatched rows.
        super().__init__("MATCHED: expected a proof of the id of each row; the session is rejected")
        self.claimed, self.unmatched = claimed, unmatched


@dataclass(frozen=True)
class PartyMatch:
    """The labeled rows of a party."""

    rows: NDArray[np.int64]
    """Row number of each handle."""
    labeled_ids: int
    """Number of labeled ids of the coordinator."""
    session: bytes
    """Session id, equal on both sides."""


Replies = Generator[MatchingMessage, MatchingMessage, MatchingMessage]
"""Yields replies, receives requests, and returns the first request of the next phase."""


class PartySession:
    """Replies to the coordinator; can be run once, and ends at the first invalid message."""

    def __init__(
        self, ids: Sequence[str], rule: str, n_threads: int | None = None, max_ids: int = MAX_IDS
    ) -> None:
        self._texts = normalize_ids(ids, rule, "ids")
        self._rule, self._n_threads, self._max_ids = rule, n_threads, max_ids
        self._items = SessionItems()
        self._steps: Generator[MatchingMessage, MatchingMessage, None] | None = None
        self.match: PartyMatch | None = None
        """The result; None until the coordinator has sent all of it."""

    def answer(self, data: bytes) -> bytes:
        """Reply to a request; an unexpected request ends the session."""
        request = decode(data)
        try:
            if self._steps is None:
                self._steps = self._replies(request)
                return next(self._steps).encode()
            return self._steps.send(request).encode()
        except StopIteration:
            raise MatchingError(
                f"{request.kind.name}: this session is over; create a new one to match again"
            ) from None

    def _replies(
        self, request: MatchingMessage
    ) -> Generator[MatchingMessage, MatchingMessage, None]:
        hello, welcome = self._start(request)
        session = session_id(hello, welcome)
        request = yield welcome
        with ThreadMap(self._n_threads) as threads:
            server = OprfServer(self._texts, hash_domain(session, self._rule), threads)
            request = yield from self._serve(session, request, server, hello.number)
        yield from self._receive_matches(session, request, server, hello.number)

    def _start(self, request: MatchingMessage) -> tuple[MatchingMessage, MatchingMessage]:
        hello = check_message(request, MessageKind.HELLO, request.session, request.number)
        if hello.body != self._rule.encode():
            raise MatchingError(
                f"the coordinator normalizes ids by rule {hello.body.decode(errors='replace')!r}, "
                f"this party by {self._rule!r}; use the same rule on both sides and match again"
            )
        check_count(hello.number, self._max_ids, "the coordinator")
        welcome = MatchingMessage(
            MessageKind.WELCOME, hello.session, len(self._texts), os.urandom(NONCE_BYTES)
        )
        return hello, welcome

    def _serve(
        self, session: bytes, request: MatchingMessage, server: OprfServer, labeled: int
    ) -> Replies:
        """Evaluate the coordinator's points, and send the tags of this party's ids."""
        for part, _, size in parts(labeled):
            check_message(request, MessageKind.BLIND, session, part, size)
            body = self._items.send(server.evaluate(self._items.receive(request)))
            request = yield MatchingMessage(MessageKind.EVALUATED, session, part, body)
        for part, some, _ in parts(len(self._texts)):
            check_message(request, MessageKind.WANT_TAGS, session, part, 0)
            body = self._items.send(server.tags(some))
            request = yield MatchingMessage(MessageKind.TAGS, session, part, body)
        return request

    def _receive_matches(
        self, session: bytes, request: MatchingMessage, server: OprfServer, labeled: int
    ) -> Generator[MatchingMessage, MatchingMessage, None]:
        """Receive the matches; a handle is the index of a match in this list."""
        received, count, part, full = list[NDArray[np.void]](), 0, 0, True
        while full:
            check_message(request, MessageKind.MATCHED, session, part)
            claims = np.frombuffer(request.body, dtype=CLAIM)
            received.append(claims)
            count += len(claims)
            if (claims["position"] >= len(server.order)).any() or count > labeled:
                raise MatchingError(
                    f"MATCHED: expected at most {labeled} positions, each below {len(server.order)}"
                )
            part, full = part + 1, len(claims) == PART_SIZE
            if not full:
                claims = np.concatenate(received)
                check_claims(claims, server.proofs)
                rows = server.order[claims["position"]].astype(np.int64)
                self.match = PartyMatch(rows, labeled, session)
            request = yield MatchingMessage(MessageKind.DONE, session, count)


def check_claims(claims: NDArray[np.void], proofs: Sequence[bytes]) -> None:
    """Accept claimed rows only with the proof of each, and each row once."""
    if len(np.unique(claims["position"])) < len(claims):
        raise MatchingError("MATCHED: expected each item once, got a duplicate")
    expected = [proofs[position] for position in claims["position"].tolist()]
    unproved = sum(a != b for a, b in zip(claims["proof"].tolist(), expected, strict=True))
    if unproved:
        raise UnmatchedRowsError(len(claims), unproved)
