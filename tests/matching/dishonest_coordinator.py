"""A coordinator that deviates from the protocol wherever a test says so."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tests.matching.session_helpers import RULE
from xvfl.matching.group import ThreadMap
from xvfl.matching.normalize import normalize_ids
from xvfl.matching.oprf import Half, OprfClient, OprfServer, hash_domain
from xvfl.matching.session_checks import session_id
from xvfl.matching.session_messages import NONCE_BYTES, MatchingMessage, MessageKind, decode

Items = list[bytes]


@dataclass
class DishonestCoordinator:
    """Runs a session of one part; the callables replace what an honest coordinator sends."""

    exchange: Callable[[bytes], bytes]
    labeled: Sequence[str]
    blind: Callable[[Items], Items] = lambda points: points
    evaluate: Callable[[Items], Items] | None = None
    tags: Callable[[Items], Items] = lambda tags: tags
    claim: Callable[[list[int]], list[int]] = lambda matched: matched
    session: bytes = b""
    party_ids: int = 0
    replies: dict[MessageKind, Items] = field(default_factory=dict)

    def start(self) -> None:
        hello = MatchingMessage(
            MessageKind.HELLO, bytes(NONCE_BYTES), len(self.labeled), RULE.encode()
        )
        welcome = decode(self.exchange(hello.encode()))
        self.session, self.party_ids = session_id(hello, welcome), welcome.number

    def send(self, kind: MessageKind, items: Items) -> Items:
        """Send one request, record the reply and return its items."""
        request = MatchingMessage(kind, self.session, 0, b"".join(items))
        reply = decode(self.exchange(request.encode()))
        self.replies[reply.kind] = reply.items()
        return reply.items()

    def run(self) -> None:
        """Run all phases."""
        self.start()
        texts = normalize_ids(self.labeled, RULE, "labeled ids")
        with ThreadMap(1) as threads:
            client = OprfClient(texts, hash_domain(Half.COORDINATOR, self.session, RULE), threads)
            server = OprfServer(texts, hash_domain(Half.PARTY, self.session, RULE), threads)
            everything = slice(None)
            points = self.blind(client.blind(everything))
            evaluated = self.send(MessageKind.BLIND, points)
            client.finish(everything, evaluated)
            matched = client.find(self.send(MessageKind.WANT_TAGS, []))
            points = self.send(MessageKind.WANT_BLIND, [])
            evaluated = (self.evaluate or server.evaluate)(points)
            self.send(MessageKind.PARTY_EVALUATED, evaluated)
            self.send(MessageKind.COORDINATOR_TAGS, self.tags(server.tags(everything)))
        self.send_claims(self.claim(list(matched.values())))

    def send_claims(self, positions: list[int]) -> None:
        body = np.array(positions, dtype="<u4").tobytes()
        self.send(MessageKind.MATCHED, [body])
