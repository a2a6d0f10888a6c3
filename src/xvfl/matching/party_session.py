"""A party's side of a session; the package's docstring describes the protocol."""

import os
from collections.abc import Generator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xvfl.errors import MatchingError
from xvfl.matching.group import ThreadMap
from xvfl.matching.normalize import normalize_ids
from xvfl.matching.oprf import Half, OprfClient, OprfServer, hash_domain
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


class UnmatchedRowsError(MatchingError):
    """The coordinator claimed rows that the party did not find itself."""

    def __init__(self, claimed: int, unmatched: int) -> None:
        # The coordinator receives this text: it does not contain the number of unmatched rows.
        super().__init__(
            "MATCHED: expected only rows that this party found itself; the session is rejected"
        )
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
    found: int
    """Number of labeled rows that the party found; the coordinator may list fewer."""


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
        self._found = np.zeros(0, dtype=np.int64)
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
            domain = hash_domain(Half.COORDINATOR, session, self._rule)
            server = OprfServer(self._texts, domain, threads)
            request = yield from self._serve(session, request, server, hello.number)
            domain = hash_domain(Half.PARTY, session, self._rule)
            client = OprfClient(self._texts, domain, threads)
            request = yield from self._find_matches(session, request, client, hello.number)
        yield from self._receive_matches(session, request, server.order, hello.number)

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
        """Run the first half as the server: the coordinator finds its matches."""
        for part, _, size in parts(labeled):
            check_message(request, MessageKind.BLIND, session, part, size)
            body = self._items.send(server.evaluate(self._items.receive(request)))
            request = yield MatchingMessage(MessageKind.EVALUATED, session, part, body)
        for part, some, _ in parts(len(self._texts)):
            check_message(request, MessageKind.WANT_TAGS, session, part, 0)
            body = self._items.send(server.tags(some))
            request = yield MatchingMessage(MessageKind.TAGS, session, part, body)
        return request

    def _find_matches(
        self, session: bytes, request: MatchingMessage, client: OprfClient, labeled: int
    ) -> Replies:
        """Run the second half as the client: the party finds its own matches."""
        for part, some, size in parts(len(self._texts)):
            check_message(request, MessageKind.WANT_BLIND, session, part, 0)
            body = self._items.send(client.blind(some))
            request = yield MatchingMessage(MessageKind.PARTY_BLIND, session, part, body)
            check_message(request, MessageKind.PARTY_EVALUATED, session, part, size)
            client.finish(some, self._items.receive(request))
            request = yield MatchingMessage(MessageKind.RECEIVED, session, part)
        tags = list[bytes]()
        for part, _, size in parts(labeled):
            check_message(request, MessageKind.COORDINATOR_TAGS, session, part, size)
            tags += self._items.receive(request)
            request = yield MatchingMessage(MessageKind.RECEIVED, session, part)
        self._found = np.array(list(client.find(tags)), dtype=np.int64)
        return request

    def _receive_matches(
        self, session: bytes, request: MatchingMessage, order: NDArray[np.intp], labeled: int
    ) -> Generator[MatchingMessage, MatchingMessage, None]:
        """Receive the matched positions; a handle is the index of a position in this list."""
        received, count, part, full = list[NDArray[np.int64]](), 0, 0, True
        while full:
            check_message(request, MessageKind.MATCHED, session, part)
            positions = np.frombuffer(request.body, dtype="<u4").astype(np.int64)
            received.append(positions)
            count += len(positions)
            if (positions >= len(order)).any() or count > labeled:
                raise MatchingError(
                    f"MATCHED: expected at most {labeled} positions, each below {len(order)}"
                )
            part, full = part + 1, len(positions) == PART_SIZE
            if not full:
                rows = order[np.concatenate(received)].astype(np.int64)
                check_claims(rows, self._found)
                self.match = PartyMatch(rows, labeled, session, len(self._found))
            request = yield MatchingMessage(MessageKind.DONE, session, count)


def check_claims(rows: NDArray[np.int64], found: NDArray[np.int64]) -> None:
    """Accept claimed rows only if the party found each of them itself, and each once."""
    if len(np.unique(rows)) < len(rows):
        raise MatchingError("MATCHED: expected each item once, got a duplicate")
    unmatched = int((~np.isin(rows, found)).sum())
    if unmatched:
        raise UnmatchedRowsError(len(rows), unmatched)
