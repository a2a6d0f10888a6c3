"""The coordinator's side of a session; the package's docstring describes the protocol."""

import os
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xvfl.errors import MatchingError
from xvfl.matching.group import (
    ThreadMap,
    hash_to_point,
    invert,
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

Exchange = Callable[[bytes], bytes]
"""Send a request to the party and return its reply."""


@dataclass(frozen=True)
class CoordinatorMatch:
    """The labeled rows that a party holds."""

    handles: NDArray[np.int64]
    """The party's handle of each labeled row, -1 if it does not hold the row."""
    party_ids: int
    """Number of ids of the party."""
    session: bytes
    """Session id, equal on both sides."""


Requests = Generator[MatchingMessage, MatchingMessage, CoordinatorMatch]


class CoordinatorSession:
    """Matches ids with one party; can be run once."""

    def __init__(
        self, ids: Sequence[str], rule: str, n_threads: int | None = None, max_ids: int = MAX_IDS
    ) -> None:
        self._texts = normalize_ids(ids, rule, "labeled ids")
        self._rule, self._n_threads, self._max_ids = rule, n_threads, max_ids
        self._steps: Requests | None = self._requests()

    def match(self, exchange: Exchange) -> CoordinatorMatch:
        """Run the session over a transport."""
        steps, self._steps = self._steps, None
        if steps is None:
            raise MatchingError("this session has already run; create a new one to match again")
        request = next(steps)
        while True:
            reply = decode(exchange(request.encode()))
            try:
                request = steps.send(reply)
            except StopIteration as ended:
                match: CoordinatorMatch = ended.value
                return match

    def _requests(self) -> Requests:
        hello = MatchingMessage(
            MessageKind.HELLO, os.urandom(NONCE_BYTES), len(self._texts), self._rule.encode()
        )
        reply = yield hello
        welcome = check_message(reply, MessageKind.WELCOME, hello.session, reply.number, 1)
        check_count(welcome.number, self._max_ids, "the party")
        session = session_id(hello, welcome)
        order = random_order(len(self._texts))
        with ThreadMap(self._n_threads) as threads:
            tags = yield from self._evaluate(session, threads, [self._texts[i] for i in order])
        positions = yield from self._collect(session, welcome.number)
        pairs = [
            (row, positions[tag]) for row, tag in zip(order, tags, strict=True) if tag in positions
        ]
        shuffled = [pairs[i] for i in random_order(len(pairs))]
        yield from self._send_matches(session, [position for _, position in shuffled])
        handles = np.full(len(order), -1, dtype=np.int64)
        handles[[row for row, _ in shuffled]] = np.arange(len(shuffled))
        return CoordinatorMatch(handles, welcome.number, session)

    def _evaluate(
        self, session: bytes, threads: ThreadMap, texts: list[str]
    ) -> Generator[MatchingMessage, MatchingMessage, list[bytes]]:
        """Compute the tags of our ids under the party's key, without revealing the ids."""
        blind = random_scalar()
        unblind, seen, tags = invert(blind), set[bytes](), list[bytes]()
        for part, size in enumerate(part_sizes(len(texts))):
            some = texts[part * PART_SIZE : part * PART_SIZE + size]
            blinded = threads.map(
                lambda text: multiply(blind, hash_to_point(text, self._rule)), some
            )
            reply = yield MatchingMessage(MessageKind.BLIND, session, part, b"".join(blinded))
            points = check_message(reply, MessageKind.EVALUATED, session, part, size).items()
            reject_duplicates(points, seen, MessageKind.EVALUATED)
            pairs = list(zip(some, points, strict=True))
            tags += threads.map(lambda pair: make_tag(pair[0], multiply(unblind, pair[1])), pairs)
        return tags

    def _collect(
        self, session: bytes, count: int
    ) -> Generator[MatchingMessage, MatchingMessage, dict[bytes, int]]:
        """Request the tags of the party's ids; return the position of each."""
        seen, tags = set[bytes](), list[bytes]()
        for part, size in enumerate(part_sizes(count)):
            reply = yield MatchingMessage(MessageKind.WANT, session, part)
            some = check_message(reply, MessageKind.TAGS, session, part, size).items()
            reject_duplicates(some, seen, MessageKind.TAGS)
            tags += some
        return {tag: position for position, tag in enumerate(tags)}

    def _send_matches(
        self, session: bytes, positions: list[int]
    ) -> Generator[MatchingMessage, MatchingMessage, None]:
        """Send the matched positions; a part that is not full is the last."""
        for part, start in enumerate(range(0, len(positions) + 1, PART_SIZE)):
            some = np.array(positions[start : start + PART_SIZE], dtype="<u4")
            reply = yield MatchingMessage(MessageKind.MATCHED, session, part, some.tobytes())
            check_message(reply, MessageKind.DONE, session, start + len(some), 0)
