"""The coordinator's side of a session; the package's docstring describes the protocol."""

import os
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xvfl.errors import MatchingError
from xvfl.matching.group import ThreadMap, random_order
from xvfl.matching.normalize import normalize_ids
from xvfl.matching.oprf import Claim, OprfClient, hash_domain
from xvfl.matching.session_checks import (
    MAX_IDS,
    SessionItems,
    check_count,
    check_message,
    count_requests,
    parts,
    session_id,
)
from xvfl.matching.session_messages import (
    NONCE_BYTES,
    PART_SIZE,
    POSITION_BYTES,
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


Progress = Callable[[int, int], None]
"""Receives the number of answered requests and of all requests, without those at both ends."""
Requests = Generator[MatchingMessage, MatchingMessage, CoordinatorMatch]
Phase = Generator[MatchingMessage, MatchingMessage, None]
"""Yields requests and receives replies."""


class CoordinatorSession:
    """Matches ids with one party; can be run once."""

    def __init__(
        self, ids: Sequence[str], rule: str, n_threads: int | None = None, max_ids: int = MAX_IDS
    ) -> None:
        self._texts = normalize_ids(ids, rule, "labeled ids")
        self._rule, self._n_threads, self._max_ids = rule, n_threads, max_ids
        self._items = SessionItems()
        self._steps: Requests | None = self._requests()
        self._n_requests = 0

    def match(
        self, exchange: Exchange, progress: Progress = lambda done, total: None
    ) -> CoordinatorMatch:
        """Run the session over a transport."""
        steps, self._steps = self._steps, None
        if steps is None:
            raise MatchingError("this session has already run; create a new one to match again")
        request, done = next(steps), 0
        while True:
            reply = decode(exchange(request.encode()))
            if 0 < done <= self._n_requests:
                progress(done, self._n_requests)
            done += 1
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
        self._n_requests = count_requests(len(self._texts), welcome.number)
        with ThreadMap(self._n_threads) as threads:
            claims = yield from self._find_matches(session, threads, welcome.number)
        claims = [claims[i] for i in random_order(len(claims))]
        yield from self._send_matches(session, claims)
        handles = np.full(len(self._texts), -1, dtype=np.int64)
        handles[[claim.row for claim in claims]] = np.arange(len(claims))
        return CoordinatorMatch(handles, welcome.number, session)

    def _find_matches(
        self, session: bytes, threads: ThreadMap, party_ids: int
    ) -> Generator[MatchingMessage, MatchingMessage, list[Claim]]:
        """Return the labeled rows whose tag is in the party's list."""
        domain = hash_domain(session, self._rule)
        client, tags = OprfClient(self._texts, domain, threads), list[bytes]()
        for part, some, size in parts(len(self._texts)):
            body = self._items.send(client.blind(some))
            reply = yield MatchingMessage(MessageKind.BLIND, session, part, body)
            check_message(reply, MessageKind.EVALUATED, session, part, size)
            client.finish(some, self._items.receive(reply))
        for part, _, size in parts(party_ids):
            reply = yield MatchingMessage(MessageKind.WANT_TAGS, session, part)
            check_message(reply, MessageKind.TAGS, session, part, size)
            tags += self._items.receive(reply)
        return client.find(tags)

    def _send_matches(self, session: bytes, claims: list[Claim]) -> Phase:
        """Send positions and proofs of the matches; a part that is not full is the last."""
        for part, start in enumerate(range(0, len(claims) + 1, PART_SIZE)):
            some = claims[start : start + PART_SIZE]
            body = b"".join(map(encode_claim, some))
            reply = yield MatchingMessage(MessageKind.MATCHED, session, part, body)
            check_message(reply, MessageKind.DONE, session, start + len(some), 0)


def encode_claim(claim: Claim) -> bytes:
    """Return an item of MATCHED."""
    return claim.position.to_bytes(POSITION_BYTES, "little") + claim.proof
