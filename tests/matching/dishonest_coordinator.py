"""A coordinator that deviates from the protocol wherever a test says so."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.matching.session_helpers import RULE
from xvfl.matching.coordinator_session import encode_claim
from xvfl.matching.group import ThreadMap
from xvfl.matching.normalize import normalize_ids
from xvfl.matching.oprf import Claim, OprfClient, hash_domain
from xvfl.matching.session_checks import session_id
from xvfl.matching.session_messages import NONCE_BYTES, MatchingMessage, MessageKind, decode

Items = list[bytes]
Claims = list[Claim]


@dataclass
class DishonestCoordinator:
    """Runs a session of one part; the callables replace what an honest coordinator sends."""

    exchange: Callable[[bytes], bytes]
    labeled: Sequence[str]
    blind: Callable[[Items], Items] = lambda points: points
    claim: Callable[[Claims], Claims] = lambda matched: matched
    session: bytes = b""
    replies: dict[MessageKind, Items] = field(default_factory=dict)
    proved: Claims = field(default_factory=list)

    def start(self) -> None:
        hello = MatchingMessage(
            MessageKind.HELLO, bytes(NONCE_BYTES), len(self.labeled), RULE.encode()
        )
        self.session = session_id(hello, decode(self.exchange(hello.encode())))

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
            client = OprfClient(texts, hash_domain(self.session, RULE), threads)
            everything = slice(None)
            points = self.blind(client.blind(everything))
            client.finish(everything, self.send(MessageKind.BLIND, points))
            self.proved = client.find(self.send(MessageKind.WANT_TAGS, []))
        self.send_claims(self.claim(self.proved))

    def send_claims(self, claims: Claims) -> None:
        self.send(MessageKind.MATCHED, [encode_claim(each) for each in claims])
