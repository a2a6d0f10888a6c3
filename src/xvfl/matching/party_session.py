"""A party's side of a session; what it says is in the package's docstring."""

import os
from collections.abc import Generator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xvfl.errors import MatchingError
from xvfl.matching.group import Cores, point_of, random_order, secret, tag_of, times
from xvfl.matching.normalise import normalised
from xvfl.matching.session_checks import (
    MOST_IDS,
    check,
    check_count,
    refuse_repeated,
    session_name,
    sizes,
)
from xvfl.matching.session_messages import NONCE, PART, Kind, Message, decode


@dataclass(frozen=True)
class PartyMatch:
    """Which of a party's rows are labelled."""

    rows: NDArray[np.int64]
    """The row of each handle."""
    labelled_ids: int
    """How many labelled ids the coordinator has in all."""
    session: bytes
    """The same name on both sides."""


Answers = Generator[Message, Message, Message]
"""Gives replies, takes requests; ends with the request it has not answered."""


class PartySession:
    """Answers the coordinator; used once, and over at the first wrong message."""

    def __init__(
        self, ids: Sequence[str], rule: str, workers: int | None = None, max_ids: int = MOST_IDS
    ) -> None:
        self._texts = normalised(ids, rule, "ids")
        self._rule, self._most = rule, max_ids
        self._cores = Cores(workers)
        self._key = secret()
        self._order = random_order(len(self._texts))
        self._talk: Generator[Message, Message, None] | None = None
        self.match: PartyMatch | None = None
        """What was matched; none until the coordinator has said all of it."""

    def answer(self, data: bytes) -> bytes:
        """Reply to a request; one that is not the next of this session ends it."""
        request = decode(data)
        try:
            if self._talk is None:
                self._talk = self._replies(request)
                return next(self._talk).encode()
            return self._talk.send(request).encode()
        except StopIteration:
            raise MatchingError(
                f"{request.kind.name}: this session is over; matching again needs a new one"
            ) from None

    def _replies(self, request: Message) -> Generator[Message, Message, None]:
        hello, welcome = self._greet(request)
        session = session_name(hello, welcome)
        request = yield welcome
        request = yield from self._evaluate(session, request, hello.number)
        request = yield from self._give_tags(session, request)
        yield from self._take(session, request, hello.number)

    def _greet(self, request: Message) -> tuple[Message, Message]:
        hello = check(request, Kind.HELLO, request.session, request.number)
        if hello.body != self._rule.encode():
            raise MatchingError(
                f"the coordinator normalises ids by rule {hello.body.decode(errors='replace')!r}, "
                f"this party by {self._rule!r}; agree on one and match again"
            )
        check_count(hello.number, self._most, "the coordinator")
        welcome = Message(Kind.WELCOME, hello.session, len(self._texts), os.urandom(NONCE))
        return hello, welcome

    def _evaluate(self, session: bytes, request: Message, count: int) -> Answers:
        """Multiply the coordinator's blinded points."""
        seen = set[bytes]()
        for part, size in enumerate(sizes(count)):
            points = check(request, Kind.BLIND, session, part, size).items()
            refuse_repeated(points, seen, Kind.BLIND)
            products = self._cores.map(lambda point: times(self._key, point), points)
            request = yield Message(Kind.EVALUATED, session, part, b"".join(products))
        return request

    def _give_tags(self, session: bytes, request: Message) -> Answers:
        """Give the tags of our own ids in an order that is ours alone."""
        for part, size in enumerate(sizes(len(self._texts))):
            check(request, Kind.WANT, session, part, 0)
            some = [self._texts[i] for i in self._order[part * PART : part * PART + size]]
            tags = self._cores.map(self._tag, some)
            request = yield Message(Kind.TAGS, session, part, b"".join(tags))
        return request

    def _tag(self, text: str) -> bytes:
        return tag_of(text, times(self._key, point_of(text, self._rule)))

    def _take(
        self, session: bytes, request: Message, labelled: int
    ) -> Generator[Message, Message, None]:
        """Take the places that matched; handles count them in the order they come."""
        seen, part, full = set[bytes](), 0, True
        taken: list[NDArray[np.int64]] = []
        while full:
            items = check(request, Kind.MATCHED, session, part).items()
            refuse_repeated(items, seen, Kind.MATCHED)
            places = np.frombuffer(request.body, dtype="<u4").astype(np.int64)
            if (places >= len(self._texts)).any() or len(seen) > labelled:
                raise MatchingError(
                    f"MATCHED: expected places below {len(self._texts)}, at most {labelled} of them"
                )
            taken.append(self._order[places])
            part, full = part + 1, len(places) == PART
            if not full:
                self.match = PartyMatch(np.concatenate(taken), labelled, session)
                self._cores.close()
            request = yield Message(Kind.DONE, session, len(seen))
