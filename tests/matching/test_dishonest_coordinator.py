"""Attacks of a dishonest coordinator get no row; each succeeds once its defense is removed."""

from collections.abc import Callable

import pytest

from tests.matching.dishonest_coordinator import DishonestCoordinator, Items
from tests.matching.session_helpers import RULE, run_matching
from xvfl.errors import MatchingError
from xvfl.matching import CoordinatorSession, PartySession, UnmatchedRowsError
from xvfl.matching.group import ThreadMap
from xvfl.matching.oprf import Half, OprfClient, OprfServer, hash_domain
from xvfl.matching.session_checks import SessionItems
from xvfl.matching.session_messages import MatchingMessage, MessageKind, decode

IDS = [f"c{i}" for i in range(6)]
LABELED = ["c0", "c1", "x2", "x3", "x4", "x5"]
"""The coordinator knows two of the party's six ids."""
MATCHED_ROWS = [0, 1]


def attack(**deviations: Callable[..., object]) -> tuple[PartySession, DishonestCoordinator]:
    party = PartySession(IDS, RULE, n_threads=1)
    return party, DishonestCoordinator(party.answer, LABELED, **deviations)  # type: ignore[arg-type]


def without_echo_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SessionItems, "receive", lambda self, message: message.items())


def one_unmatched(matched: list[int]) -> list[int]:
    return [*matched, next(i for i in range(len(IDS)) if i not in matched)]


CLAIMS: dict[str, Callable[[list[int]], list[int]]] = {
    "all": lambda matched: list(range(len(IDS))),
    "one more": one_unmatched,
    "only unmatched": lambda matched: [i for i in range(len(IDS)) if i not in matched],
}


def test_without_a_deviation_the_session_succeeds() -> None:
    party, coordinator = attack()
    coordinator.run()
    assert party.match is not None and sorted(party.match.rows) == MATCHED_ROWS


@pytest.mark.parametrize(
    ("claim", "unmatched"), [("all", 4), ("one more", 1), ("only unmatched", 4)]
)
def test_claims_of_unmatched_rows_are_rejected(claim: str, unmatched: int) -> None:
    party, coordinator = attack(claim=CLAIMS[claim])
    with pytest.raises(UnmatchedRowsError, match="found itself") as raised:
        coordinator.run()
    assert raised.value.unmatched == unmatched
    assert str(unmatched) not in str(raised.value), "the coordinator does not learn the number"
    assert party.match is None
    with pytest.raises(MatchingError, match="this session is over"):
        coordinator.send_claims([])


@pytest.mark.parametrize("claim", CLAIMS)
def test_without_the_check_of_claims_the_party_believes_them(
    claim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xvfl.matching.party_session.check_claims", lambda rows, found: None)
    party, coordinator = attack(claim=CLAIMS[claim])
    coordinator.run()
    assert party.match is not None and set(party.match.rows) - set(MATCHED_ROWS)


def test_repeated_claims_are_rejected() -> None:
    party, coordinator = attack(claim=lambda matched: [*matched, matched[0]])
    with pytest.raises(MatchingError, match="MATCHED: expected each item once"):
        coordinator.run()
    assert party.match is None


def test_more_claims_than_labeled_ids_are_rejected() -> None:
    party = PartySession(IDS, RULE, n_threads=1)
    with pytest.raises(MatchingError, match="at most 2 positions"):
        DishonestCoordinator(party.answer, IDS[:2], claim=CLAIMS["all"]).run()
    assert party.match is None


def test_rows_that_the_coordinator_leaves_out_get_no_handle() -> None:
    party, coordinator = attack(claim=lambda matched: matched[:1])
    coordinator.run()
    assert party.match is not None
    assert len(party.match.rows) == 1 and party.match.found == 2


def test_ids_of_the_first_half_alone_give_no_row() -> None:
    party, coordinator = attack(tags=lambda tags: [bytes([i]) * 16 for i in range(len(tags))])
    with pytest.raises(UnmatchedRowsError):
        coordinator.run()
    assert party.match is None


def test_the_partys_points_as_blinded_points_come_too_late() -> None:
    party, coordinator = attack()

    def echo(points: Items) -> Items:
        return coordinator.send(MessageKind.BLIND, points)

    coordinator.evaluate = echo
    with pytest.raises(MatchingError, match="expected PARTY_EVALUATED 0, got BLIND 0"):
        coordinator.run()
    assert party.match is None


def test_the_partys_points_of_an_earlier_session_match_nothing() -> None:
    _, earlier = attack()
    earlier.run()
    party, coordinator = attack(
        blind=lambda _: earlier.replies[MessageKind.PARTY_BLIND], claim=CLAIMS["all"]
    )
    with pytest.raises(UnmatchedRowsError) as raised:
        coordinator.run()
    assert raised.value.unmatched == 4, "the ids of the second half are known, the others are not"
    assert party.match is None


def test_echoed_points_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("session_messages", "session_checks"):
        monkeypatch.setattr(f"xvfl.matching.{module}.PART_SIZE", 3)
    party = PartySession(IDS, RULE, n_threads=1)
    coordinator = DishonestCoordinator(party.answer, LABELED)
    coordinator.start()
    with ThreadMap(1) as threads:
        points = OprfClient(LABELED, b"", threads).blind(slice(3))
    evaluated = coordinator.send(MessageKind.BLIND, points)
    again = MatchingMessage(MessageKind.BLIND, coordinator.session, 1, b"".join(evaluated))
    with pytest.raises(MatchingError, match="BLIND: .* got an echo"):
        party.answer(again.encode())


@pytest.mark.parametrize("kind", [MessageKind.PARTY_BLIND, MessageKind.EVALUATED])
def test_the_partys_points_as_evaluations_are_rejected(kind: MessageKind) -> None:
    party, coordinator = attack()
    coordinator.evaluate = lambda _: coordinator.replies[kind]
    with pytest.raises(MatchingError, match="PARTY_EVALUATED: .* got an echo"):
        coordinator.run()
    assert party.match is None


def test_the_partys_tags_are_rejected() -> None:
    party, coordinator = attack()
    coordinator.tags = lambda _: coordinator.replies[MessageKind.TAGS]
    with pytest.raises(MatchingError, match="COORDINATOR_TAGS: .* got an echo"):
        coordinator.run()
    assert party.match is None


@pytest.mark.parametrize("what", ["points", "tags", "both"])
def test_echoes_give_no_row_even_without_their_check(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_echo_check(monkeypatch)
    party, coordinator = attack(claim=CLAIMS["all"])
    if what != "tags":
        coordinator.evaluate = lambda points: points
    if what != "points":
        coordinator.tags = lambda _: coordinator.replies[MessageKind.TAGS]
    with pytest.raises(UnmatchedRowsError):
        coordinator.run()
    assert party.match is None


def relay_between_two_parties() -> PartySession:
    """Let a second party evaluate the points of the first, and send its tags to the first.

    Both parties hold the same ids, of which the coordinator knows none.
    """
    first, second = (PartySession(IDS, RULE, n_threads=1) for _ in range(2))
    unknown = [f"x{i}" for i in range(len(IDS))]
    other = DishonestCoordinator(second.answer, unknown)
    other.start()

    def evaluate(points: Items) -> Items:
        return other.send(MessageKind.BLIND, points)

    def tags(_: Items) -> Items:
        return other.send(MessageKind.WANT_TAGS, [])

    DishonestCoordinator(
        first.answer, unknown, evaluate=evaluate, tags=tags, claim=CLAIMS["all"]
    ).run()
    return first


def test_a_second_partys_ids_give_no_row() -> None:
    with pytest.raises(UnmatchedRowsError) as raised:
        relay_between_two_parties()
    assert raised.value.unmatched == len(IDS)


def test_without_separate_hashes_a_second_partys_ids_give_every_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("xvfl.matching.party_session.hash_domain", lambda half, session, rule: b"")
    party = relay_between_two_parties()
    assert party.match is not None and sorted(party.match.rows) == list(range(len(IDS)))


def reflect(server_half: Half) -> int:
    """Return how many ids a party finds if it evaluates its own points and gets its own tags."""
    session = bytes(16)
    with ThreadMap(1) as threads:
        client = OprfClient(IDS, hash_domain(Half.PARTY, session, RULE), threads)
        server = OprfServer(IDS, hash_domain(server_half, session, RULE), threads)
        client.finish(slice(None), server.evaluate(client.blind(slice(None))))
        return len(client.find(server.tags(slice(None))))


def test_a_partys_own_answers_match_only_without_separate_hashes() -> None:
    assert reflect(Half.COORDINATOR) == 0
    assert reflect(Half.PARTY) == len(IDS)


def test_a_whole_session_cannot_be_replayed() -> None:
    _, _, said = run_matching(LABELED, IDS)
    party = PartySession(IDS, RULE, n_threads=1)
    party.answer(said[0])
    with pytest.raises(MatchingError, match="another session"):
        party.answer(said[2])
    assert party.match is None


@pytest.mark.parametrize("kind", [MessageKind.EVALUATED, MessageKind.PARTY_BLIND])
def test_a_coordinator_rejects_echoes_of_a_party(kind: MessageKind) -> None:
    party, blinded = PartySession(IDS, RULE, n_threads=1), list[bytes]()

    def exchange(data: bytes) -> bytes:
        if decode(data).kind == MessageKind.BLIND:
            blinded.append(decode(data).body)
        reply = decode(party.answer(data))
        if reply.kind == kind:
            reply = MatchingMessage(kind, reply.session, reply.number, blinded[0])
        return reply.encode()

    with pytest.raises(MatchingError, match=f"{kind.name}: .* got an echo"):
        CoordinatorSession(LABELED, RULE, n_threads=1).match(exchange)
