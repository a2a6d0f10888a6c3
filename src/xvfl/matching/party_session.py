"""A party's side of a session; the package's docstring describes the protocol."""

import os
from collections.abc import Generator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xvfl.errors import MatchingError
from xvfl.matching.group import (
    ThreadMap,
    hash_to_point,
    make_tag,
    multiply,
    random_order,
    random_scalar,
)
from xvfl.matching.normalize import normalize_ids
from xvfl.matching.session_checks import (
    MAX_IDS,
    check_count,
    check_message,
    part_sizes,
    reject_duplicates,
    session_id,
)
from xvfl.matching.session_messages import (
    NONCE_BYTES,
    PART_SIZE,
    MatchingMessage,
    MessageKind,
    decode,
)


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
        self._rule, self._max_ids = rule, max_ids
        self._threads = ThreadMap(n_threads)
        self._key = random_scalar()
        self._order = random_order(len(self._texts))
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
        request = yield from self._evaluate(session, request, hello.number)
        request = yield from self._send_tags(session, request)
        yield from self._receive_matches(session, request, hello.number)

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

    def _evaluate(self, session: bytes, request: MatchingMessage, count: int) -> Replies:
        """Multiply the coordinator's blinded points."""
        seen = set[bytes]()
        for part, size in enumerate(part_sizes(count)):
            points = check_message(request, MessageKind.BLIND, session, part, size).items()
            reject_duplicates(points, seen, MessageKind.BLIND)
            products = self._threads.map(lambda point: multiply(self._key, point), points)
            request = yield MatchingMessage(
                MessageKind.EVALUATED, session, part, b"".join(products)
            )
        return request

    def _send_tags(self, session: bytes, request: MatchingMessage) -> Replies:
        """Send the tags of our ids in a secret order."""
        for part, size in enumerate(part_sizes(len(self._texts))):
            check_message(request, MessageKind.WANT, session, part, 0)
            some = [self._texts[i] for i in self._order[part * PART_SIZE : part * PART_SIZE + size]]
            tags = self._threads.map(self._tag, some)
            request = yield MatchingMessage(MessageKind.TAGS, session, part, b"".join(tags))
        return request

    def _tag(self, text: str) -> bytes:
        return make_tag(text, multiply(self._key, hash_to_point(text, self._rule)))

    def _receive_matches(
        self, session: bytes, request: MatchingMessage, labeled: int
    ) -> Generator[MatchingMessage, MatchingMessage, None]:
        """Receive the matched positions; a handle is the index of a position in this list."""
        seen, part, full = set[bytes](), 0, True
        received: list[NDArray[np.int64]] = []
        while full:
            items = check_message(request, MessageKind.MATCHED, session, part).items()
            reject_duplicates(items, seen, MessageKind.MATCHED)
            positions = np.frombuffer(request.body, dtype="<u4").astype(np.int64)
            if (positions >= len(self._texts)).any() or len(seen) > labeled:
                raise MatchingError(
                    f"MATCHED: expected at most {labeled} positions, each below {len(self._texts)}"
                )
            received.append(self._order[positions])
            part, full = part + 1, len(positions) == PART_SIZE
            if not full:
                self.match = PartyMatch(np.concatenate(received), labeled, session)
                self._threads.close()
            request = yield MatchingMessage(MessageKind.DONE, session, len(seen))
