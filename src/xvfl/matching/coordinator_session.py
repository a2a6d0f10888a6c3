"""The coordinator's side of a session; what it says is in the package's docstring."""

import os
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xvfl.errors import MatchingError
from xvfl.matching.group import Cores, inverse, point_of, random_order, secret, tag_of, times
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

Exchange = Callable[[bytes], bytes]
"""Carry a request to the party and give its reply."""


@dataclass(frozen=True)
class CoordinatorMatch:
    """Which labelled rows a party holds."""

    handles: NDArray[np.int64]
    """The party's handle of each labelled row, -1 where it holds none."""
    party_ids: int
    """How many ids the party has in all."""
    session: bytes
    """The same name on both sides."""


Talk = Generator[Message, Message, CoordinatorMatch]


class CoordinatorSession:
    """Asks one party; used once."""

    def __init__(
        self, ids: Sequence[str], rule: str, workers: int | None = None, max_ids: int = MOST_IDS
    ) -> None:
        self._texts = normalised(ids, rule, "labelled ids")
        self._rule, self._workers, self._most = rule, workers, max_ids
        self._talk: Talk | None = self._requests()

    def match(self, exchange: Exchange) -> CoordinatorMatch:
        """Run the session over a transport."""
        talk, self._talk = self._talk, None
        if talk is None:
            raise MatchingError("this session has run already; matching again needs a new one")
        request = next(talk)
        while True:
            reply = decode(exchange(request.encode()))
            try:
                request = talk.send(reply)
            except StopIteration as ended:
                found: CoordinatorMatch = ended.value
                return found

    def _requests(self) -> Talk:
        hello = Message(Kind.HELLO, os.urandom(NONCE), len(self._texts), self._rule.encode())
        reply = yield hello
        welcome = check(reply, Kind.WELCOME, hello.session, reply.number, 1)
        check_count(welcome.number, self._most, "the party")
        session = session_name(hello, welcome)
        order = random_order(len(self._texts))
        with Cores(self._workers) as cores:
            tags = yield from self._evaluate(session, cores, [self._texts[i] for i in order])
        places = yield from self._collect(session, welcome.number)
        found = [(row, places[tag]) for row, tag in zip(order, tags, strict=True) if tag in places]
        chosen = [found[i] for i in random_order(len(found))]
        yield from self._tell(session, [place for _, place in chosen])
        handles = np.full(len(order), -1, dtype=np.int64)
        handles[[row for row, _ in chosen]] = np.arange(len(chosen))
        return CoordinatorMatch(handles, welcome.number, session)

    def _evaluate(
        self, session: bytes, cores: Cores, texts: list[str]
    ) -> Generator[Message, Message, list[bytes]]:
        """Learn the party's tags of our ids, without its learning which ids they are."""
        blind = secret()
        undo, seen, tags = inverse(blind), set[bytes](), list[bytes]()
        for part, size in enumerate(sizes(len(texts))):
            some = texts[part * PART : part * PART + size]
            blinded = cores.map(lambda text: times(blind, point_of(text, self._rule)), some)
            reply = yield Message(Kind.BLIND, session, part, b"".join(blinded))
            points = check(reply, Kind.EVALUATED, session, part, size).items()
            refuse_repeated(points, seen, Kind.EVALUATED)
            pairs = list(zip(some, points, strict=True))
            tags += cores.map(lambda pair: tag_of(pair[0], times(undo, pair[1])), pairs)
        return tags

    def _collect(self, session: bytes, count: int) -> Generator[Message, Message, dict[bytes, int]]:
        """Ask for the tags of the party's own ids, and note where each stands."""
        seen, tags = set[bytes](), list[bytes]()
        for part, size in enumerate(sizes(count)):
            reply = yield Message(Kind.WANT, session, part)
            some = check(reply, Kind.TAGS, session, part, size).items()
            refuse_repeated(some, seen, Kind.TAGS)
            tags += some
        return {tag: place for place, tag in enumerate(tags)}

    def _tell(self, session: bytes, places: list[int]) -> Generator[Message, Message, None]:
        """Say which places matched; a part that is not full is the last."""
        for part, start in enumerate(range(0, len(places) + 1, PART)):
            some = np.array(places[start : start + PART], dtype="<u4")
            reply = yield Message(Kind.MATCHED, session, part, some.tobytes())
            check(reply, Kind.DONE, session, start + len(some), 0)
